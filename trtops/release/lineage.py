"""From one version of the root of trust to the next, as The Update Framework does it.

Version N + 1 is signed by enough root keys of version N, which vouch for the change, and by enough of its own, which
shows that they can be used (https://theupdateframework.github.io/specification/latest/, §5.3). A root that names no
root keys, as a home makes on first use, is replaced by hand and in no other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import InputError, TrustError
from trtops.release import layout
from trtops.release.envelope import verify
from trtops.release.root import PublicKey, Role, RoleKeys, Root, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.release.fetch import Readable

MAX_STEPS = 256
"""Versions that are followed at once: whoever controls a registry must not keep a service busy for ever."""


def next_root(trusted: Root, body: bytes, *, where: str | None = None) -> Root:
    """Accept the version that follows a trusted one.

    Raises:
        TrustError: it is forged, signed by too few root keys of either version, of another version than the next, or
            it brings a revoked key back (whoever can write to the registry, or holds too few root keys).
    """
    where = where or layout.root(trusted.version + 1)
    # Arbitrary software, key compromise: who was trusted until now has to vouch for who is from now on.
    new = verify(body, Root, trusted, where=where).value
    if new.version != trusted.version + 1:
        # Rollback, and fast-forward: a root that skips versions could hide a revocation in one of them.
        raise TrustError(f"this is version {new.version} of the root, expected {trusted.version + 1}", where=where)
    if lost := sorted(trusted.revoked.keys() - new.revoked.keys()):
        # Key compromise: a stolen key is stolen for ever.
        raise TrustError(f"this root brings the revoked key {lost[0][:12]} back", where=where)
    verify(body, Root, new, where=where)
    return new


def latest_root(trusted: Root, registry: Readable) -> Root:
    """The newest version of the root that a registry has, every step to it verified. Its expiry is for others to judge.

    As TUF does it, an expired version on the way is no hindrance: only the last one counts.

    Raises:
        TrustError: a version was refused (whoever can write to the registry).
        Unavailable: the registry is away.
    """
    for _ in range(MAX_STEPS):
        if not trusted.followed:
            return trusted
        where = layout.root(trusted.version + 1)
        body = registry.read(where)
        if body is None:
            return trusted
        trusted = next_root(trusted, body, where=where)
    return trusted


def with_key(root: Root, role: Role, key: PublicKey) -> Root:
    """The next version, which also trusts a key for a role.

    Raises:
        InputError: it is trusted for that role already, or was revoked.
    """
    if key.key_id in root.revoked:
        raise InputError(f"key {key.key_id[:12]} was revoked and never counts again", fix="make another key")
    listed = root.roles.get(role)
    if listed is not None and key.key_id in listed.keys:
        raise InputError(f"key {key.key_id[:12]} is a {role} key already")
    members = (*listed.keys, key.key_id) if listed else (key.key_id,)
    roles = {**root.roles, role: RoleKeys(keys=members, threshold=listed.threshold if listed else 1)}
    return _changed(root, keys={**root.keys, key.key_id: key}, roles=roles)


def without_key(root: Root, key_id: str, *, instead: Mapping[Role, PublicKey] | None = None) -> Root:
    """The next version, in which nothing that a key signs, or has signed, counts.

    Args:
        root: the present version.
        key_id: the key to revoke.
        instead: role -> key that takes its place; roles that would have too few keys need one.

    Raises:
        InputError: it is not trusted, or a role would be left with fewer keys than have to sign.
    """
    if key_id not in root.keys:
        raise InputError(f"key {key_id[:12]} is not trusted", fix="see trtops trust show for those that are")
    instead = instead or {}
    keys = {name: key for name, key in root.keys.items() if name != key_id}
    roles: dict[Role, RoleKeys] = {}
    for role, listed in root.roles.items():
        if key_id not in listed.keys:
            roles[role] = listed
            continue
        new = instead.get(role)
        members = (*(name for name in listed.keys if name != key_id), *((new.key_id,) if new else ()))
        if len(members) < listed.threshold:
            what = f"role {role} needs {listed.threshold} keys and would have {len(members)}"
            raise InputError(what, fix=f"add one first: trtops trust rotate {role}")
        if new:
            keys[new.key_id] = new
        roles[role] = RoleKeys(keys=members, threshold=listed.threshold)
    return _changed(root, keys=keys, roles=roles, revoked={**root.revoked, key_id: root.keys[key_id]})


def with_rules(
    root: Root,
    *,
    thresholds: Mapping[Role, int] | None = None,
    tiers: Mapping[str, Tier] | None = None,
    expires: int | None = None,
) -> Root:
    """The next version, with other thresholds, tiers or another expiry (epoch seconds); what is not given stays.

    Raises:
        InputError: a role is not there, or has fewer keys than would have to sign.
    """
    roles = dict(root.roles)
    for role, threshold in (thresholds or {}).items():
        if role not in roles:
            raise InputError(f"the root has no role {role}", fix="see trtops trust show")
        roles[role] = RoleKeys.model_construct(keys=roles[role].keys, threshold=threshold)
    expiry = root.expires if expires is None else expires
    return _changed(root, roles=roles, tiers={**root.tiers, **(tiers or {})}, expires=expiry)


def _changed(root: Root, **changes: object) -> Root:
    from pydantic import ValidationError

    plain = {name: getattr(root, name) for name in type(root).model_fields}
    dumped = {name: _plain(value) for name, value in {**plain, **changes, "version": root.version + 1}.items()}
    try:
        return Root.model_validate(dumped)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"this root could not hold: {reason}") from None


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else value
