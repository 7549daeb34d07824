"""Laws of roots and snapshots, over histories that nobody would write down by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.digest import Digest
from trtops.errors import InputError, TrtopsError, TrustError, Unavailable
from trtops.release.documents import Binding, ChannelSnapshot, Listed
from trtops.release.envelope import sign
from trtops.release.keys import Signer
from trtops.release.lineage import latest_root, next_root, with_key, with_rules, without_key
from trtops.release.root import ALL_ROLES, Role, Root, root_of
from trtops.release.snapshot import TrustedSnapshot, check_floor, fresh_until

NOW = 1_800_000_000
KEYS = [Signer.generate() for _ in range(4)]
OWN: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
FIRST = root_of({role: signer.public for role, signer in OWN.items()})


def _digest(text: str) -> Digest:
    return Digest.of_bytes(text.encode())


def _binding(generation: int, expires: int | None = None) -> Binding:
    return Binding(
        engine="cls",
        environment="dev",
        generation=generation,
        engine_release=_digest("engine"),
        config_release=_digest("config"),
        reason="release",
        actor="a",
        created=NOW,
        expires=expires,
    )


def _snapshot(version: int = 1, root: int = 1, **changes: Any) -> ChannelSnapshot:
    fields: dict[str, Any] = {"environment": "dev", "version": version, "root": root, "channels": {}, "created": NOW}
    return ChannelSnapshot(**(fields | changes))


signers = st.lists(st.sampled_from([*KEYS, OWN["root"]]), unique=True, max_size=5)


@settings(max_examples=60)
@given(extra=st.integers(0, 3), before=st.integers(1, 3), after=st.integers(1, 3), signed=signers)
def test_a_root_follows_when_enough_keys_of_both_versions_signed_and_in_no_other_case(
    extra: int, before: int, after: int, signed: list[Signer]
) -> None:
    trusted = FIRST
    for key in KEYS[:extra]:
        trusted = with_key(trusted, "root", key.public)
    members = {OWN["root"].key_id, *(key.key_id for key in KEYS[:extra])}
    if max(before, after) > len(members):
        with pytest.raises(InputError):
            with_rules(trusted, thresholds={"root": max(before, after)})
        return
    trusted = with_rules(trusted, thresholds={"root": before})
    new = with_rules(trusted, thresholds={"root": after})
    valid = members & {signer.key_id for signer in signed}
    if not signed:
        return
    if len(valid) >= max(before, after):
        assert next_root(trusted, sign(new, signed)) == new
    else:
        with pytest.raises(TrustError):
            next_root(trusted, sign(new, signed))


steps = st.lists(st.tuples(st.sampled_from(["add", "revoke"]), st.sampled_from(range(len(KEYS)))), max_size=8)


@settings(max_examples=60)
@given(steps=steps)
def test_whatever_versions_follow_each_other_a_revoked_key_vouches_for_nothing(steps: list[tuple[str, int]]) -> None:
    root, published = FIRST, dict[str, bytes]()
    revoked: set[str] = set()
    for verb, number in steps:
        key = KEYS[number]
        try:
            root_new = with_key(root, "channel", key.public) if verb == "add" else without_key(root, key.key_id)
        except InputError:
            assert key.key_id in revoked or (key.key_id in root.keys) == (verb == "add")
            continue
        if verb == "revoke":
            revoked.add(key.key_id)
        published[f"roots/{root_new.version}"] = sign(root_new, [OWN["root"]])
        root = root_new
    found = latest_root(FIRST, _Registry(published))
    assert found == root
    assert found.version == 1 + len(published)
    assert set(found.revoked) == revoked
    assert not revoked & set(found.keys)
    assert all(key.key_id not in revoked for role in ALL_ROLES for key in found.members(role)[0])


class _Registry:
    def __init__(self, documents: dict[str, bytes]) -> None:
        self._documents = documents

    def read(self, name: str) -> bytes | None:
        return self._documents.get(name)


@settings(max_examples=60)
@given(versions=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=12))
def test_the_version_that_was_seen_never_goes_down(versions: list[tuple[int, bool]]) -> None:
    trusted = TrustedSnapshot(FIRST, "dev")
    highest = 0
    for version, expired in versions:
        body = sign(_snapshot(version, expires=NOW - 1 if expired else NOW + 60), [OWN["refresh"]])
        try:
            trusted.update(body, NOW)
            assert not expired
            assert version >= highest
        except Unavailable:
            assert expired
        except TrustError:
            pass
        seen = trusted.seen.version if trusted.seen else 0
        assert seen >= highest
        highest = seen


@settings(max_examples=60)
@given(listed=st.integers(1, 9), have=st.integers(1, 9), same=st.booleans())
def test_the_floor_lets_pass_what_is_newer_and_the_very_one_that_is_listed(listed: int, have: int, same: bool) -> None:
    binding = _binding(have)
    digest = binding.digest() if same else _digest("another")
    snapshot = _snapshot(channels={"cls/stable": Listed(generation=listed, binding=digest)})
    passes = have > listed or (have == listed and same)
    try:
        check_floor(snapshot, binding, binding.digest(), "x")
        assert passes
    except TrtopsError:
        assert not passes


@settings(max_examples=60)
@given(
    own=st.none() | st.integers(NOW - 9, NOW + 9), whole=st.none() | st.integers(NOW - 9, NOW + 9), listed=st.booleans()
)
def test_a_snapshot_never_makes_a_pointer_expire_sooner(own: int | None, whole: int | None, listed: bool) -> None:
    binding = _binding(1, own)
    channels = {"cls/stable": Listed(generation=1, binding=binding.digest())} if listed else {}
    until = fresh_until(_snapshot(channels=channels, expires=whole), binding, binding.digest())
    never = float("inf")
    assert (never if until is None else until) >= (never if own is None else own)
    if not listed:
        assert until == own


@settings(max_examples=60)
@given(st.builds(lambda extra: with_rules(FIRST, expires=extra), st.integers(0, 2**40)))
def test_a_root_survives_its_envelope(root: Root) -> None:
    assert next_root(FIRST, sign(root, [OWN["root"]])) == root
    assert Root.model_validate_json(root.canonical_bytes()) == root
