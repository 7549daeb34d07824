"""Secrets: opened by their recipients, in their place, in memory; and shown nowhere."""

from __future__ import annotations

import base64
import logging
import stat
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.support.releases import NOW
from trtops.errors import Conflict, InputError, TrtopsError, TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.envelope import sign
from trtops.release.keys import KeyRing
from trtops.release.sealing import (
    Identity,
    fetch_secret,
    keygen,
    open_sealed,
    publish_secret,
    references,
    resolve,
    seal,
)
from trtops.spec.engine import RuntimeConfig

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.release.documents import SealedSecret

PLANTED = "hunter2-7d1f0c"
PLACE = {"engine": "cls", "environment": "prod", "path": "db/password"}


def _identity() -> Identity:
    import pyrage

    return Identity(SecretStr(str(pyrage.x25519.Identity.generate())))


ONE, TWO = _identity(), _identity()


def _sealed(*recipients: Identity, value: str = PLANTED, **place: Any) -> SealedSecret:
    names = [one.recipient for one in recipients or (ONE,)]
    return seal(SecretStr(value), recipients=names, created=NOW, **(PLACE | place))


def _open(secret: SealedSecret, identity: Identity = ONE, **place: str) -> str:
    return open_sealed(secret, identity, **(PLACE | place)).get_secret_value()


@settings(max_examples=30)
@given(st.text(max_size=200))
def test_opens_to_what_was_sealed(value: str) -> None:
    assert _open(_sealed(value=value)) == value


def test_every_recipient_opens_and_nobody_else() -> None:
    secret = _sealed(ONE, TWO)
    assert _open(secret, ONE) == _open(secret, TWO) == PLANTED
    with pytest.raises(TrustError, match="seal it again with the recipient age1"):
        _open(secret, _identity())


@pytest.mark.parametrize("elsewhere", [{"engine": "det"}, {"environment": "dev"}, {"path": "db/user"}])
def test_a_secret_cannot_be_moved(elsewhere: dict[str, str]) -> None:
    """Relabelling the document does not help: the place is inside what is sealed."""
    moved = _sealed().model_copy(update=elsewhere)
    with pytest.raises(TrustError, match="another place"):
        _open(moved, ONE, **elsewhere)


def test_an_altered_secret_does_not_open() -> None:
    secret = _sealed()
    raw = bytearray(base64.b64decode(secret.sealed))
    raw[-1] ^= 1
    altered = secret.model_copy(update={"sealed": base64.b64encode(bytes(raw)).decode()})
    with pytest.raises(TrustError, match="altered"):
        _open(altered)
    with pytest.raises(TrustError, match="altered"):
        _open(secret.model_copy(update={"sealed": "A"}))


@pytest.mark.parametrize("clear", [b"", b"\xff", b"[1]", b'"x"', b'{"engine": "cls"}'])
def test_a_payload_of_another_form_is_refused(clear: bytes) -> None:
    import pyrage

    sealed = pyrage.encrypt(clear, [pyrage.x25519.Recipient.from_str(ONE.recipient)])
    secret = _sealed().model_copy(update={"sealed": base64.b64encode(sealed).decode()})
    with pytest.raises(TrustError, match="another place"):
        _open(secret)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recipients": []}, "nobody could open it"),
        ({"recipients": ["age1nonsense"]}, "not an age public key"),
        ({"recipients": ["AGE-SECRET-KEY-1PLANTED"]}, "not an age public key"),
        ({"path": "DB Password"}, "path"),
        ({"environment": ""}, "environment"),
        ({"value": SecretStr(PLANTED * 4000)}, "larger than 32768 bytes"),
    ],
)
def test_what_cannot_be_sealed_is_named_and_not_shown(changes: dict[str, Any], reason: str) -> None:
    fields: dict[str, Any] = {"value": SecretStr(PLANTED), "recipients": [ONE.recipient], "created": NOW} | PLACE
    fields |= changes
    with pytest.raises(InputError, match=reason) as caught:
        seal(fields.pop("value"), **fields)
    shown = "".join(traceback.format_exception(caught.value))
    assert PLANTED not in shown
    assert "SECRET-KEY" not in str(caught.value)


def test_values_and_keys_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    identity = keygen(tmp_path / "keys" / "age.txt")
    secret = _sealed(identity)
    opened = open_sealed(secret, identity, **PLACE)
    config = RuntimeConfig(
        apiVersion="trtops/v1", kind="Runtime", sections={"a": ["secret:db/password", {"b": "secret:db/password"}]}
    )
    resolved = resolve(config, lambda _: opened)
    errors: list[str] = []
    for wrong in ({"environment": "dev"}, {"path": "other"}):
        with pytest.raises(TrtopsError) as caught:
            open_sealed(secret, identity, **(PLACE | wrong))
        errors.append("".join(traceback.format_exception(caught.value)))
    private = (tmp_path / "keys" / "age.txt").read_text().splitlines()[-1]
    shown = f"{opened!r}{opened}{resolved!r}{identity!r}{secret!r}{errors}{caplog.text}{secret.canonical_bytes()!r}"
    assert private.startswith("AGE-SECRET-KEY-1")
    assert PLANTED not in shown
    assert private not in shown
    assert base64.b64encode(PLANTED.encode()).decode() not in shown
    assert resolved["sections"]["a"][1]["b"].get_secret_value() == PLANTED


def test_identities_are_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "age.txt"
    assert keygen(path).recipient == keygen(path).recipient
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(TrustError, match="chmod 600"):
        keygen(path)


@pytest.mark.parametrize("body", ["", "# only a comment\n", "AGE-SECRET-KEY-1NONSENSE\n", "a\nb\n"])
def test_a_damaged_identity_is_named(tmp_path: Path, body: str) -> None:
    path = tmp_path / "age.txt"
    path.touch(0o600)
    path.write_text(body)
    with pytest.raises(InputError, match="not an age identity") as caught:
        keygen(path)
    assert str(path) in str(caught.value)
    assert "NONSENSE" not in str(caught.value)


def test_references_are_found_wherever_they_stand() -> None:
    config = RuntimeConfig.model_validate(
        {
            "apiVersion": "trtops/v1",
            "kind": "Runtime",
            "database": {"url": "postgres://db", "password": "secret:db/password"},
            "features": {"key": "secret:feature/key"},
            "sections": {"deep": [{"token": "secret:api/token"}], "text": "a secret: of nature"},
        }
    )
    assert references(config) == ("api/token", "db/password", "feature/key")
    asked: list[str] = []

    def opened(path: str) -> SecretStr:
        asked.append(path)
        return SecretStr(path.upper())

    resolved = resolve(config, opened)
    assert asked == ["api/token", "db/password", "feature/key"]
    assert resolved["database"]["password"].get_secret_value() == "DB/PASSWORD"
    assert resolved["sections"]["text"] == "a secret: of nature"


def test_published_fetched_and_rotated() -> None:
    registry, keys = MemoryRegistry(), KeyRing()
    publish_secret(registry, keys, _sealed())
    assert fetch_secret(registry, keys.root(), ONE, **PLACE).get_secret_value() == PLANTED
    publish_secret(registry, keys, _sealed(value="rotated"))
    assert fetch_secret(registry, keys.root(), ONE, **PLACE).get_secret_value() == "rotated"
    assert registry.names() == ("secrets/cls/db/password",)
    assert PLANTED.encode() not in (registry.read("secrets/cls/db/password") or b"")


def test_publishing_the_same_document_again_writes_nothing() -> None:
    registry, keys, secret = MemoryRegistry(), KeyRing(), _sealed()
    publish_secret(registry, keys, secret)
    writes = len(registry.writes)
    publish_secret(registry, keys, secret)
    assert len(registry.writes) == writes


def test_a_secret_that_is_not_there_says_how_to_make_it() -> None:
    with pytest.raises(Unavailable, match="trtops secret seal cls db/password"):
        fetch_secret(MemoryRegistry(), KeyRing().root(), ONE, **PLACE)


def test_a_secret_of_an_attackers_choice_is_refused() -> None:
    """Anybody can seal to a public key; only the release key may choose the value."""
    registry, keys = MemoryRegistry(), KeyRing()
    registry.put(layout.secret("cls", "db/password"), sign(_sealed(value="evil"), [KeyRing().signer("release")]))
    with pytest.raises(TrustError, match="0 of the 1 release keys"):
        fetch_secret(registry, keys.root(), ONE, **PLACE)


def test_two_who_rotate_at_once() -> None:
    class Racing(MemoryRegistry):
        def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
            self.put(name, b"somebody else's")
            super().swap(name, body, expected)

    with pytest.raises(Conflict, match="seal it again"):
        publish_secret(Racing(), KeyRing(), _sealed())
