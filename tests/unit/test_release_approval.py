"""Approvals: what counts, and what an attacker who controls the registry can do: nothing that counts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.digest import Digest
from trtops.errors import TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.approval import MAX_APPROVALS, PREDICATE, Approval, approvals, approve, read_approval
from trtops.release.envelope import sign_statement
from trtops.release.keys import Signer

NOW = 1_800_000_000
RELEASE = Digest.of_bytes(b"release")
OTHER = Digest.of_bytes(b"another release")
ALICE, BOB, MALLORY = (Signer.generate() for _ in range(3))


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


def _approval(signer: Signer, *, engine: str = "cls", release: Digest = RELEASE, created: int = NOW) -> Approval:
    return Approval(engine=engine, release=release, key=signer.public, created=created)


def _put(registry: MemoryRegistry, body: bytes, key: str, release: Digest = RELEASE) -> None:
    registry.put(layout.approval("cls", release, key), body)


def _facts(*registries: MemoryRegistry) -> list[tuple[str, bool, str]]:
    return [(one["key"], one["valid"], one["over"]) for one in approvals(registries, "cls", RELEASE)]


def test_an_approval_is_found_with_its_key_and_what_it_is_over(registry: MemoryRegistry) -> None:
    assert approve(registry, ALICE, "cls", RELEASE, now=NOW) is True
    assert approve(registry, ALICE, "cls", RELEASE, now=NOW) is False
    (fact,) = approvals([registry], "cls", RELEASE)
    assert fact == {"key": ALICE.key_id, "valid": True, "over": str(RELEASE), "created": NOW}
    assert approvals([registry], "cls", OTHER) == ()
    assert approvals([registry], "det", RELEASE) == ()


def test_it_can_be_renewed(registry: MemoryRegistry) -> None:
    approve(registry, ALICE, "cls", RELEASE, now=NOW)
    assert approve(registry, ALICE, "cls", RELEASE, now=NOW + 9) is True
    (fact,) = approvals([registry], "cls", RELEASE)
    assert fact["created"] == NOW + 9


def test_of_several_registries_the_newest_that_holds_counts(registry: MemoryRegistry) -> None:
    other = MemoryRegistry()
    approve(registry, ALICE, "cls", RELEASE, now=NOW)
    approve(other, ALICE, "cls", RELEASE, now=NOW + 9)
    approve(other, BOB, "cls", RELEASE, now=NOW)
    _put(registry, b"{}", BOB.key_id)
    facts = approvals([registry, other], "cls", RELEASE)
    assert {fact["key"]: (fact["valid"], fact["created"]) for fact in facts} == {
        ALICE.key_id: (True, NOW + 9),
        BOB.key_id: (True, NOW),
    }


def test_forged_signature(registry: MemoryRegistry) -> None:
    """Mallory signs what says that Alice approves."""
    _put(registry, sign_statement(_approval(ALICE), PREDICATE, [MALLORY]), ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, "")]


def test_moved_to_another_release(registry: MemoryRegistry) -> None:
    body = sign_statement(_approval(ALICE, release=OTHER), PREDICATE, [ALICE])
    _put(registry, body, ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, str(OTHER))]


def test_moved_to_another_key(registry: MemoryRegistry) -> None:
    _put(registry, sign_statement(_approval(MALLORY), PREDICATE, [MALLORY]), ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, str(RELEASE))]


def test_of_another_engine(registry: MemoryRegistry) -> None:
    _put(registry, sign_statement(_approval(ALICE, engine="det"), PREDICATE, [ALICE]), ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, str(RELEASE))]


def test_a_document_signed_for_another_purpose(registry: MemoryRegistry) -> None:
    _put(registry, sign_statement(_approval(ALICE), PREDICATE.replace("approval", "binding"), [ALICE]), ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, "")]


def _edited(body: bytes, **changes: Any) -> bytes:
    envelope = json.loads(body)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"] |= changes
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    return json.dumps(envelope).encode()


def test_tampered_payload() -> None:
    body = sign_statement(_approval(ALICE, release=OTHER), PREDICATE, [ALICE])
    for changes in (
        {"release": str(RELEASE)},
        {"created": NOW + 1},
        {"engine": "det"},
        {"key": MALLORY.public.model_dump()},
    ):
        with pytest.raises(TrustError):
            read_approval(_edited(body, **changes), where="here")


def test_endless_approvals_are_not_read(registry: MemoryRegistry) -> None:
    for number in range(MAX_APPROVALS + 20):
        _put(registry, b"garbage", f"key-{number:03}")
    assert len(_facts(registry)) == MAX_APPROVALS


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text(max_size=5), lambda one: st.lists(one) | st.dictionaries(st.sampled_from(["payload", "payloadType", "signatures"]), one)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_counts_for_nobody(body: bytes) -> None:
    registry = MemoryRegistry()
    _put(registry, body, ALICE.key_id)
    assert _facts(registry) == [(ALICE.key_id, False, "")]


def test_a_registry_that_is_away_is_no_lack_of_approvals(registry: MemoryRegistry) -> None:
    registry.away = True
    with pytest.raises(Unavailable):
        approvals([registry], "cls", RELEASE)
