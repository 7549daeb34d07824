"""What the next version of a root may be, and what keys a home holds for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from trtops.errors import InputError, TrustError
from trtops.release.keys import KeyRing, KeyStore, Signer
from trtops.release.lineage import with_key, with_rules, without_key
from trtops.release.root import ALL_ROLES, Role, Root, Tier, root_of

if TYPE_CHECKING:
    from pathlib import Path

OWN: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
ROOT = root_of({role: signer.public for role, signer in OWN.items()})
OTHER = Signer.generate()


def test_a_key_is_added_once_and_leaves_the_others_alone() -> None:
    new = with_key(ROOT, "channel", OTHER.public)
    assert (new.version, new.roles["channel"].keys) == (2, (OWN["channel"].key_id, OTHER.key_id))
    assert new.roles["release"] == ROOT.roles["release"]
    with pytest.raises(InputError, match="is a channel key already"):
        with_key(new, "channel", OTHER.public)
    assert with_key(new, "release", OTHER.public).version == 3  # one key may have two roles


def test_a_role_that_was_not_there_is_made() -> None:
    bare = root_of({"release": OWN["release"].public})
    new = with_key(bare, "refresh", OTHER.public)
    assert new.roles["refresh"].keys == (OTHER.key_id,)
    assert (bare.refreshed, new.refreshed, new.followed) == (False, True, False)


def test_a_revoked_key_leaves_every_role_and_is_remembered() -> None:
    both = with_key(with_key(ROOT, "channel", OTHER.public), "release", OTHER.public)
    new = without_key(both, OTHER.key_id)
    assert OTHER.key_id not in new.keys
    assert new.revoked == {OTHER.key_id: OTHER.public}
    assert all(OTHER.key_id not in listed.keys for listed in new.roles.values())
    with pytest.raises(InputError, match="was revoked and never counts again"):
        with_key(new, "builder", OTHER.public)
    with pytest.raises(InputError, match="is not trusted"):
        without_key(new, OTHER.key_id)


def test_a_role_is_never_left_with_fewer_keys_than_have_to_sign() -> None:
    with pytest.raises(InputError, match="role channel needs 1 keys and would have 0") as caught:
        without_key(ROOT, OWN["channel"].key_id)
    assert "trtops trust rotate channel" in str(caught.value.fix)
    new = without_key(ROOT, OWN["channel"].key_id, instead={"channel": OTHER.public})
    assert new.members("channel") == ((OTHER.public,), 1)
    tiers = with_rules(with_key(ROOT, "release", OTHER.public), tiers={"gold": Tier(threshold=2)})
    with pytest.raises(InputError, match="tier gold needs 2 release keys and there are 1"):
        without_key(tiers, OTHER.key_id)


def test_thresholds_and_tiers_have_to_be_met_by_the_keys_that_there_are() -> None:
    with pytest.raises(InputError, match="role root needs 2 keys and has 1"):
        with_rules(ROOT, thresholds={"root": 2})
    with pytest.raises(InputError, match="tier gold needs 2 release keys and there are 1"):
        with_rules(ROOT, tiers={"gold": Tier(threshold=2)})
    with pytest.raises(InputError, match="has no role refresh"):
        with_rules(root_of({"root": OTHER.public}), thresholds={"refresh": 1})
    two = with_key(ROOT, "release", OTHER.public)
    new = with_rules(two, tiers={"gold": Tier(threshold=2, engines=("cls",))}, expires=9)
    assert new.expires == 9
    asked = [("cls", "bronze"), ("det", "gold"), ("det", "bronze")]
    assert [new.signatures_on(engine, tier) for engine, tier in asked] == [2, 2, 1]


def test_a_revoked_key_is_not_trusted_in_the_same_root() -> None:
    with pytest.raises(ValidationError, match="revoked keys are listed as trusted"):
        Root.model_validate(ROOT.model_dump() | {"revoked": {OTHER.key_id: OTHER.public.model_dump()}} | _keys(OTHER))


def _keys(signer: Signer) -> dict[str, object]:
    return {"keys": {**ROOT.model_dump()["keys"], signer.key_id: signer.public.model_dump()}}


# Keys of a home


def test_root_and_refresh_keys_are_not_made_in_passing(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    unmade: tuple[Role, ...] = ("root", "refresh")
    for role in unmade:
        assert not keys.holds(role)
        with pytest.raises(TrustError, match=f"there is no {role} key here"):
            keys.signer(role)
    made = keys.made("refresh")
    assert keys.holds("refresh")
    assert keys.signer("refresh").key_id == made.key_id


def test_a_renewed_key_signs_once_it_is_trusted(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    old = keys.signer("channel")
    root = keys.root()
    new = keys.renewed("channel")
    assert new.key_id != old.key_id
    assert (tmp_path / "keys" / f"channel-{old.key_id[:12]}.pem").stat().st_mode & 0o077 == 0
    assert keys.signer("channel").key_id == old.key_id
    assert set(keys.all_signers()) >= {old.key_id, new.key_id}
    keys.adopt(with_key(root, "channel", new.public))
    assert keys.signer("channel").key_id == new.key_id
    assert KeyStore(tmp_path).signer("channel").key_id == new.key_id
    assert keys.self_made()
    keys.adopt(with_key(keys.root(), "channel", OTHER.public))
    assert not keys.self_made()


def test_a_ring_holds_what_it_was_given() -> None:
    ring = KeyRing({"release": OTHER}, ROOT)
    assert (ring.holds("release"), ring.holds("refresh")) == (True, False)
