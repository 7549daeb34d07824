"""Planted secrets are looked for in everything that trtops writes: files, both streams, logs, answers, tracebacks."""

from __future__ import annotations

import base64
import json
import os
import traceback
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from trtops.errors import TrtopsError
from trtops.release.sealing import Identity, open_sealed, seal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Done, Repository

pytestmark = pytest.mark.service

VALUE = 'planted "Käse" & 7f3a91d2c4 in clear'
PLAIN = "planted-in-the-wrong-place-5be0c2"
RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
server: {host: 127.0.0.1, port: 8000}
database: {url: "postgresql://db/ocr", password: "secret:db/password"}
sections:
  mail: {token: "secret:mail/token"}
"""


def _forms(text: str) -> set[bytes]:
    """As it could have been written: as it is, escaped, quoted, encoded."""
    raw = text.encode()
    forms = {raw, raw.hex().encode(), urllib.parse.quote(text).encode(), json.dumps(text)[1:-1].encode()}
    for start in range(3):  # base64 of a longer text that holds it: three ways to be cut
        forms.add(base64.b64encode(b"\0" * start + raw)[(4 if start else 0) : -4])
    return forms


class Written:
    """Everything that commands have written to their streams."""

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.streams: dict[str, str] = {}

    def call(self, *arguments: str, **environment: str) -> Done:
        done = self.repo.call(*arguments, **environment)
        self.streams[" ".join(arguments)] = done.out + done.err
        return done

    def holding(self, secret: str, *, but: set[Path] = frozenset()) -> list[str]:  # type: ignore[assignment]
        """Names of files and commands in which a secret stands."""
        forms = _forms(secret)
        files = (path for path in self.repo.root.rglob("*") if path.is_file() and path not in but)
        found = [str(path) for path in files if any(form in path.read_bytes() for form in forms)]
        return found + [name for name, text in self.streams.items() if any(form in text.encode() for form in forms)]


@pytest.fixture
def written(repo: Repository) -> Written:
    return Written(repo)


def _everything(written: Written) -> None:
    """Every command that looks at an engine, a release or its config, in every format."""
    for name in ("text", "json", "sarif", "junit", "github", "markdown"):
        written.call("check", "tiny", "--output", f"{name}={written.repo.root / f'report.{name}'}")
    for words in (
        ("ship", "tiny", "--html", str(written.repo.root / "ship.html")),
        ("release", "tiny", "--json"),
        ("release", "tiny", "--dry-run"),
        ("verify-release", "tiny"),
        ("status",),
        ("history", "tiny", "--json"),
        ("config", "diff", "tiny", "local", "+local"),
        ("config", "diff", "tiny", "+local", "local"),
        ("plan", "tiny", "--out", str(written.repo.root / "tiny.plan")),
        ("plan", "tiny", "--format", "json"),
        ("apply", str(written.repo.root / "tiny.plan")),
        ("approve", "tiny", "--as", "bob"),
        ("interface", "lock"),
        ("inspect", "tiny"),
        ("rollout", "status", "tiny"),
        ("policy", "input", "tiny"),
        ("secret", "audit", "tiny"),
        ("trust", "init"),
        ("trust", "show", "--json"),
        ("registry", "refresh"),
        ("secret", "rotate", "tiny"),
        ("rollback", "tiny"),
        ("doctor",),
        ("settings", "show"),
    ):
        written.call(*words)


def _asked(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_a_sealed_value_stands_nowhere(written: Written) -> None:
    repo = written.repo
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    written.call("secret", "keygen").says(0)
    for path in ("db/password", "mail/token"):
        repo.call("secret", "seal", "tiny", path, stdin=VALUE).says(0)
    _everything(written)
    assert "generation 1 signed and published" in written.streams[f"ship tiny --html {repo.root / 'ship.html'}"]
    with repo.serve("tiny", PYTHONFAULTHANDLER="1") as server:
        assert server.ready["engines"]["tiny"]["status"] == "ready"
        data = f"http://127.0.0.1:{server.ready['port']}"
        control = f"http://127.0.0.1:{server.ready['control_port']}"
        for number, url in enumerate(
            (f"{data}/v2", f"{data}/v2/models/tiny", f"{data}/v2/models/tiny/config", f"{control}/metrics",
             f"{control}/v2/trtops/status", f"{data}/nothing")
        ):  # fmt: skip
            written.streams[f"answer {number} of {url}"] = _asked(url)
        for environ in ("environ", "cmdline"):
            with open(f"/proc/{server.process.pid}/{environ}", "rb") as file:  # noqa: PTH123 - not a file of ours
                written.streams[environ] = file.read().decode("utf-8", "replace")
        os.kill(server.process.pid, 6)  # dies as by a fault: faulthandler writes every thread's stack
        server.process.wait(60)
    assert "Fatal Python error: Aborted" in server.log.read_text()
    assert written.holding(VALUE) == []
    # What stands beside it is found, base64 of a release included.
    assert len(written.holding("postgresql://db/ocr")) >= 4
    # The identity and the private keys stand in their own files and nowhere else.
    identity = repo.home / "keys" / "identity.age"
    private = identity.read_text().splitlines()[-1]
    assert written.holding(private, but={identity}) == []
    keys = set((repo.home / "keys").glob("*.pem"))
    assert len(keys) == 6
    for key in keys:
        assert written.holding(key.read_text().splitlines()[1], but={key}) == []


def test_a_password_in_a_config_is_denied_and_not_repeated(written: Written) -> None:
    """Whoever wrote it there has to change it; reports of a public pull request must not spread it."""
    runtime = written.repo.engine / "runtime.yaml"
    runtime.write_text(RUNTIME)
    written.call("ship", "tiny").says(0, "generation 1 signed and published")
    runtime.write_text(RUNTIME.replace('"secret:db/password"', PLAIN))
    _everything(written)
    assert "generation" not in written.streams[f"apply {written.repo.root / 'tiny.plan'}"]
    assert (
        "secrets_are_references" in written.streams[f"check tiny --output text={written.repo.root / 'report.text'}"]
        or "secrets_are_references" in (written.repo.root / "report.text").read_text()
    )
    assert written.holding(PLAIN, but={runtime}) == []
    assert "withheld" in written.streams["config diff tiny local +local"]


@pytest.mark.parametrize("wrong", [{"path": "other"}, {"environment": "prod"}, {"generation": 2}])
def test_no_traceback_holds_a_value_not_even_one_with_locals(wrong: dict[str, str]) -> None:
    """Error trackers send the locals of every frame that an error passed."""
    import pyrage

    place: Any = {"engine": "cls", "environment": "dev", "path": "db/password"}
    identity = Identity(SecretStr(str(pyrage.x25519.Identity.generate())))
    sealed = seal(SecretStr(VALUE), **place, recipients=[identity.recipient], created=1)
    sealed = sealed.model_copy(update={"generation": wrong.pop("generation", sealed.generation)})
    with pytest.raises(TrtopsError) as caught:
        open_sealed(sealed, identity, **(place | wrong))
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = "".join(told.format())
    assert "open_sealed" in text
    assert not any(form in text.encode() for form in _forms(VALUE))


@pytest.mark.parametrize("wrong", [{"recipients": ["AGE-SECRET-KEY-1X"]}, {"recipients": []}, {"path": "../x"}])
def test_no_traceback_of_sealing_holds_a_value(wrong: dict[str, object]) -> None:
    import pyrage

    own = str(pyrage.x25519.Identity.generate().to_public())
    place: Any = {"engine": "cls", "environment": "dev", "path": "db/password", "recipients": [own], "created": 1}
    with pytest.raises(TrtopsError) as caught:
        seal(SecretStr(VALUE), **(place | wrong))
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = "".join("".join(told.format()).split("in seal\n")[1:])
    assert frames
    assert not any(form in frames.encode() for form in _forms(VALUE))
