"""Envelopes: what is signed, what is refused, and that other implementations read them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as LibraryEnvelope

from tests.support.releases import NOW, digest, evidence, runtime, sidecar, verdict
from trtops.errors import InputError, TrustError
from trtops.release.assemble import config_release
from trtops.release.documents import ConfigRelease, EngineRelease
from trtops.release.envelope import (
    MAX_ENVELOPE_BYTES,
    PAYLOAD_TYPE,
    read_unverified,
    sign,
    sign_payload,
    verify,
    verify_payload,
)
from trtops.release.keys import KeyRing, Signer
from trtops.release.root import Role, RoleKeys, Root, root_of

CONFIG = config_release("cls", "dev", runtime(), created=NOW)


def _root(role: Role, *signers: Signer, threshold: int = 1) -> Root:
    keys = {signer.key_id: signer.public for signer in signers}
    return Root(keys=keys, roles={role: RoleKeys(keys=tuple(keys), threshold=threshold)})


def _changed(body: bytes, **changes: Any) -> bytes:
    return json.dumps(json.loads(body) | changes).encode()


def test_signed_and_read_again() -> None:
    signer = Signer.generate()
    signed = verify(sign(CONFIG, [signer]), ConfigRelease, _root("release", signer))
    assert (signed.value, signed.digest, signed.key_ids) == (CONFIG, CONFIG.digest(), (signer.key_id,))


def test_signing_twice_gives_the_same_bytes() -> None:
    signer = Signer.generate()
    assert sign(CONFIG, [signer]) == sign(CONFIG, [signer])


@pytest.mark.parametrize("value", [evidence(sidecar()), verdict(), verdict("spec", deny=True)])
def test_every_kind_is_read_as_it_was_signed(value: Any) -> None:
    keys = KeyRing()
    signers = [keys.signer("builder"), keys.signer("release")]
    assert verify(sign(value, signers), type(value), keys.root()).value == value


def test_the_statement_is_of_in_toto() -> None:
    body = json.loads(sign(CONFIG, [Signer.generate()]))
    statement = json.loads(base64.b64decode(body["payload"]))
    assert body["payloadType"] == "application/vnd.in-toto+json"
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "ConfigRelease", "digest": {"sha256": CONFIG.digest().value}}]
    assert statement["predicateType"].endswith("/config-release/v1")


def test_the_signed_bytes_are_those_of_the_specification() -> None:
    """The signature is over the encoding that the DSSE protocol writes down, checked with a bare ed25519."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signer = Signer.generate()
    body = json.loads(sign_payload(b"hello", [signer]))
    encoded = b"DSSEv1 28 application/vnd.in-toto+json 5 hello"
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.public.public))
    key.verify(base64.b64decode(body["signatures"][0]["sig"]), encoded)


def test_another_implementation_reads_ours() -> None:
    signer = Signer.generate()
    envelope = LibraryEnvelope.from_dict(json.loads(sign_payload(b"{}", [signer])))
    assert list(envelope.verify([signer.dsse.public_key], 1)) == [signer.key_id]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TrustError, match="0 of the 1 release keys"):
        verify(sign(CONFIG, [Signer.generate()]), ConfigRelease, _root("release", Signer.generate()))


def test_the_key_of_another_role_is_refused() -> None:
    keys = KeyRing()
    with pytest.raises(TrustError, match="release keys"):
        verify(sign(CONFIG, [keys.signer("builder"), keys.signer("channel")]), ConfigRelease, keys.root())


def test_a_role_without_keys_verifies_nothing() -> None:
    signer = Signer.generate()
    with pytest.raises(TrustError):
        verify(sign(CONFIG, [signer]), ConfigRelease, root_of({"builder": signer.public}))


def test_threshold_counts_different_keys() -> None:
    one, two, three = (Signer.generate() for _ in range(3))
    root = _root("release", one, two, three, threshold=2)
    assert verify(sign(CONFIG, [one, three]), ConfigRelease, root).key_ids == tuple(sorted([one.key_id, three.key_id]))
    with pytest.raises(TrustError, match="it takes 2"):
        verify(sign(CONFIG, [two]), ConfigRelease, root)


def test_a_key_that_signs_twice_counts_once() -> None:
    one, two = Signer.generate(), Signer.generate()
    body = json.loads(sign(CONFIG, [one]))
    twice = _changed(json.dumps(body).encode(), signatures=body["signatures"] * 2)
    with pytest.raises(TrustError, match="Multiple signatures"):
        verify(twice, ConfigRelease, _root("release", one, two, threshold=2))
    renamed = [body["signatures"][0], body["signatures"][0] | {"keyid": two.key_id}]
    with pytest.raises(TrustError, match="1 of the 2 release keys"):
        verify(
            _changed(json.dumps(body).encode(), signatures=renamed),
            ConfigRelease,
            _root("release", one, two, threshold=2),
        )


def test_all_signers_are_reported_beyond_the_threshold() -> None:
    one, two = Signer.generate(), Signer.generate()
    assert len(verify(sign(CONFIG, [one, two]), ConfigRelease, _root("release", one, two)).key_ids) == 2


def test_a_changed_payload_is_refused() -> None:
    signer = Signer.generate()
    body = sign(CONFIG, [signer])
    payload = base64.b64decode(json.loads(body)["payload"]).replace(b"8000", b"8001")
    forged = _changed(body, payload=base64.b64encode(payload).decode())
    with pytest.raises(TrustError, match="0 of the 1"):
        verify(forged, ConfigRelease, _root("release", signer))


def test_an_unknown_payload_type_is_refused() -> None:
    signer = Signer.generate()
    with pytest.raises(TrustError, match="unknown payload type"):
        verify(_changed(sign(CONFIG, [signer]), payloadType="text/plain"), ConfigRelease, _root("release", signer))


def test_one_kind_is_not_taken_for_another() -> None:
    signer = Signer.generate()
    with pytest.raises(TrustError, match="engine-release"):
        verify(sign(CONFIG, [signer]), EngineRelease, _root("release", signer))


def test_a_subject_of_another_document_is_refused() -> None:
    signer = Signer.generate()
    statement = json.loads(base64.b64decode(json.loads(sign(CONFIG, [signer]))["payload"]))
    statement["subject"][0]["digest"]["sha256"] = digest("other").value
    with pytest.raises(TrustError, match="another document"):
        verify(sign_payload(json.dumps(statement).encode(), [signer]), ConfigRelease, _root("release", signer))


@pytest.mark.parametrize("junk", ["9007199254740993", "1e999", '"\\ud800"'])
def test_what_has_no_canonical_form_is_refused(junk: str) -> None:
    """Whoever signed it, or nobody: it is junk, and stops a look at the others no more than other junk does."""
    signer = Signer.generate()
    statement = json.loads(base64.b64decode(json.loads(sign(CONFIG, [signer]))["payload"]))
    statement["predicate"]["created"] = "JUNK"
    body = sign_payload(json.dumps(statement).replace('"JUNK"', junk).encode(), [signer])
    with pytest.raises(TrustError, match=r"canonical form|not a valid"):
        read_unverified(body, ConfigRelease)
    with pytest.raises(TrustError, match=r"canonical form|not a valid"):
        verify(body, ConfigRelease, _root("release", signer))


def test_a_newer_document_asks_for_an_update() -> None:
    signer = Signer.generate()
    statement = json.loads(base64.b64decode(json.loads(sign(CONFIG, [signer]))["payload"]))
    statement["predicate"]["novelty"] = 1
    with pytest.raises(TrustError, match="update trtops"):
        verify(sign_payload(json.dumps(statement).encode(), [signer]), ConfigRelease, _root("release", signer))


def test_too_large_is_refused_unparsed_and_never_made() -> None:
    signer = Signer.generate()
    with pytest.raises(TrustError, match="more than 100000 bytes"):
        verify(b"[" * (MAX_ENVELOPE_BYTES + 1), ConfigRelease, _root("release", signer))
    with pytest.raises(InputError, match="100000 are allowed"):
        sign_payload(b"x" * MAX_ENVELOPE_BYTES, [signer])


def test_too_many_signatures_are_refused() -> None:
    signer = Signer.generate()
    signatures = [{"keyid": f"{number:064x}", "sig": "AAAA"} for number in range(17)]
    with pytest.raises(TrustError, match="more than 16 signatures"):
        verify(_changed(sign(CONFIG, [signer]), signatures=signatures), ConfigRelease, _root("release", signer))


@pytest.mark.parametrize(
    "changes",
    [
        {"signatures": []},
        {"signatures": [{}]},
        {"signatures": [{"keyid": ["a"], "sig": "AAAA"}]},
        {"signatures": [{"keyid": "a", "sig": 7}]},
        {"signatures": [{"keyid": "a", "sig": "?"}]},
        {"signatures": "AAAA"},
        {"payload": None},
        {"payload": "?"},
        {"payloadType": {}},
        {"more": 1},
    ],
)
def test_malformed_envelopes_are_refused(changes: dict[str, Any]) -> None:
    signer = Signer.generate()
    with pytest.raises(TrustError):
        verify(_changed(sign(CONFIG, [signer]), **changes), ConfigRelease, _root("release", signer))


@pytest.mark.parametrize("body", [b"", b"\xff", b"null", b"[" * 90_000, b'{"a":' * 15_000, b"{}"])
def test_what_is_no_envelope_is_refused(body: bytes) -> None:
    with pytest.raises(TrustError, match="not a valid DSSE envelope"):
        verify(body, ConfigRelease, KeyRing().root())


KEY = Signer.generate()
BODY = sign(CONFIG, [KEY])
ROOT = _root("release", KEY)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_one_changed_byte_never_gives_another_document(at: int, flip: int) -> None:
    damaged = bytearray(BODY)
    damaged[at] ^= flip
    try:
        signed = verify(bytes(damaged), ConfigRelease, ROOT)
    except TrustError:
        return
    assert signed.value == CONFIG


@given(st.binary(max_size=200))
def test_any_bytes_give_a_trust_error(body: bytes) -> None:
    with pytest.raises(TrustError):
        verify_payload(body, [KEY.public], 1)


def test_payload_type_is_what_the_specification_names() -> None:
    assert PAYLOAD_TYPE == "application/vnd.in-toto+json"
