"""Secrets and expiry, as a user meets them."""

from __future__ import annotations

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
        ("../password", "x", (), "cannot seal"),
    ],
)
def test_a_wrong_secret_is_refused(repo: Repository, path: str, value: str, more: tuple[str, ...], says: str) -> None:
    done = _seal(repo, path, value, *more).says(2, says)
    assert "XYZ" not in done.err


def test_pointers_are_refreshed_where_they_expire(shipped: Repository) -> None:
    shipped.call("registry", "refresh").says(2, "pointers never expire here")
    shipped.call("registry", "refresh", TRTOPS_EXPIRES="3").says(0, "tiny")
    shipped.call("history", "tiny").says(0, "refresh")
    status = shipped.call("status").says(0)
    assert "never" not in status.out
    shipped.call("registry", "refresh", "absent", TRTOPS_EXPIRES="3").says(2, "absent is not released", "tiny")
