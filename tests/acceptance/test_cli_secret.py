"""Secrets and expiry, as a user meets them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.repository import Done, Repository

pytestmark = pytest.mark.service

RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
database: {url: "postgresql://db/ocr", password: "secret:db/password"}
"""
VALUE = "correct-horse-battery"


def _seal(repo: Repository, path: str, value: str, *more: str) -> Done:
    return repo.call("secret", "seal", "tiny", path, *more, stdin=value)


def test_a_secret_is_sealed_audited_and_never_written_in_clear(repo: Repository) -> None:
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    repo.call("secret", "audit", "tiny").says(1, "db/password", "not sealed")
    recipient = repo.call("secret", "keygen").says(0, "age1").out.strip()
    assert repo.call("secret", "keygen").out.strip() == recipient
    _seal(repo, "db/password", VALUE + "\n").says(0, "sealed db/password of tiny in local", recipient)
    repo.call("secret", "audit", "tiny").says(0, "sealed, and opens here")
    for path in (path for path in repo.home.rglob("*") if path.is_file()):
        assert VALUE.encode() not in path.read_bytes(), path
    assert (repo.home / "keys" / "identity.age").stat().st_mode & 0o077 == 0


def test_a_release_whose_secret_nobody_sealed_says_so_beside_what_holds(repo: Repository) -> None:
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    repo.call("ship", "tiny").says(0)
    done = repo.call("verify-release", "tiny").says(
        2, "nobody sealed a value for it in local yet", "seal one: trtops secret seal tiny db/password"
    )
    assert done.out.count("FAILS") == 1
    assert "holds" in next(line for line in done.out.splitlines() if line.startswith("config release"))
    repo.call("secret", "keygen").says(0)
    _seal(repo, "db/password", VALUE).says(0)
    assert "FAILS" not in repo.call("verify-release", "tiny").says(0, "sealed for 1").out


def test_what_is_sealed_for_others_does_not_open_here(repo: Repository) -> None:
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    other = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    repo.call("secret", "keygen").says(0)
    _seal(repo, "db/password", VALUE, "--recipient", other).says(0, other)
    repo.call("secret", "audit", "tiny").says(1, "cannot open the secret")


@pytest.mark.parametrize(
    ("path", "value", "more", "says"),
    [
        ("db/password", "", (), "the value is empty"),
        ("db/password", "x", ("--recipient", "AGE-SECRET-KEY-1XYZ"), "not an age public key"),
        ("../password", "x", (), "not the name of a secret"),
    ],
)
def test_a_wrong_secret_is_refused(repo: Repository, path: str, value: str, more: tuple[str, ...], says: str) -> None:
    done = _seal(repo, path, value, *more).says(2, says)
    assert "XYZ" not in done.err


def test_a_secret_is_opened_into_a_pipe(repo: Repository) -> None:
    repo.call("secret", "open", "tiny", "db/password").says(2, "this home has no identity")
    repo.call("secret", "keygen").says(0)
    repo.call("secret", "open", "tiny", "db/password").says(2, "there is no secret db/password for tiny in local")
    _seal(repo, "db/password", VALUE).says(0)
    assert repo.call("secret", "open", "tiny", "db/password").out == VALUE
    repo.call("secret", "open", "tiny", "../x").says(2, "not the name of a secret")
    repo.call("secret", "open", "absent", "db/password").says(2, "absent")


RECIPIENTS = """\
apiVersion: trtops/v1
kind: Recipients
environments:
  local:
    tiny: [{tiny}]
    "*": [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]
"""


def test_a_secret_on_a_terminal_ends_its_line(repo: Repository) -> None:
    """The prompt that follows would else stand behind the value."""
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    repo.call("secret", "keygen").says(0)
    _seal(repo, "db/password", VALUE).says(0)
    reader, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "trtops", "secret", "open", "tiny", "db/password"]
        done = subprocess.run(
            command,
            cwd=repo.root,
            env=repo.environment(),
            stdout=terminal,
            stderr=subprocess.PIPE,
            timeout=90,
            check=False,
        )
        assert (done.returncode, os.read(reader, 1000)) == (0, f"{VALUE}\r\n".encode()), done.stderr
    finally:
        os.close(reader)
        os.close(terminal)


def test_recipients_stand_in_a_file_and_rotating_follows_it(repo: Repository) -> None:
    """Who may open what, by environment and service: reviewed like policies, and held to."""
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    own = repo.call("secret", "keygen").out.strip()
    other = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    recipients = repo.root / "governance" / "recipients.yaml"
    recipients.write_text(RECIPIENTS.format(tiny=own))
    _seal(repo, "db/password", VALUE).says(0, own)
    _seal(repo, "api/token", VALUE).says(0, own)
    repo.call("secret", "audit", "tiny").says(0, "sealed, and opens here")
    recipients.write_text(RECIPIENTS.format(tiny=f"{own}, {other}"))
    repo.call("secret", "audit", "tiny").says(1, "sealed to others than governance/recipients.yaml lists")
    repo.call("secret", "rotate", "tiny").says(0, "sealed api/token of tiny", "sealed db/password of tiny", other)
    repo.call("secret", "audit", "tiny").says(0, "sealed, and opens here")
    assert repo.call("secret", "open", "tiny", "api/token").out == VALUE
    recipients.write_text(RECIPIENTS.format(tiny=other))
    repo.call("secret", "rotate", "tiny", "db/password").says(0, other)
    repo.call("secret", "open", "tiny", "db/password").says(2, "cannot open the secret")
    repo.call("secret", "rotate", "tiny").says(2, "cannot open the secret")  # who can no more cannot seal anew
    repo.call("check", "tiny").says(0)  # the file is no stranger to those who read the folder


def test_a_wrong_list_of_recipients_is_told_by_its_line(repo: Repository) -> None:
    recipients = repo.root / "governance" / "recipients.yaml"
    recipients.write_text(RECIPIENTS.format(tiny="AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQ"))
    done = _seal(repo, "db/password", VALUE).says(2, "governance/recipients.yaml:5:12", "age public keys")
    assert "SECRET-KEY" not in done.err


def test_pointers_are_refreshed_where_they_expire(shipped: Repository) -> None:
    shipped.call("registry", "refresh").says(2, "pointers never expire here")
    shipped.call("registry", "refresh", TRTOPS_EXPIRES="3").says(0, "tiny")
    shipped.call("history", "tiny").says(0, "refresh")
    status = shipped.call("status").says(0)
    assert "never" not in status.out
    shipped.call("registry", "refresh", "absent", TRTOPS_EXPIRES="3").says(2, "absent is not released", "tiny")
