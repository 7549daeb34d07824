"""The root of trust: which keys may sign what, and how many of them it takes.

A service gets its first root by hand (a file beside its configuration), never from the registry. From there it follows
the versions that the registry has, each signed by the one before (:mod:`trtops.release.lineage`).
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trtops.digest import Value, digest_of
from trtops.spec.engine import Name

Role = Literal["root", "builder", "release", "channel", "refresh"]
"""What a key may sign: ``root`` the next root; ``builder`` provenance and evidence; ``release`` releases, verdicts and
sealed secrets; ``channel`` bindings; ``refresh`` the snapshot of all channels, with a key that may be online."""

ROLES: tuple[Role, ...] = ("builder", "release", "channel")
"""Roles that a home makes keys of on first use."""

ALL_ROLES: tuple[Role, ...] = ("root", "builder", "release", "channel", "refresh")
"""Roles of a root that ``trtops trust init`` makes: it can be followed, and pointers can be kept fresh online."""


class PublicKey(Value):
    """The public half of an ed25519 key: 32 bytes in lower-case hexadecimal."""

    keytype: Literal["ed25519"] = "ed25519"
    scheme: Literal["ed25519"] = "ed25519"
    public: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    @property
    def key_id(self) -> str:
        """SHA-256 of the key's canonical JSON in hexadecimal: the key id of securesystemslib and TUF."""
        shape = {"keytype": self.keytype, "scheme": self.scheme, "keyval": {"public": self.public}}
        return digest_of(shape).value


class RoleKeys(Value):
    """Keys of one role by id, and how many different ones have to sign."""

    keys: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    threshold: Annotated[int, Field(ge=1, le=64)] = 1


class Tier(Value):
    """How many release keys have to sign an engine release of a tier.

    Attributes:
        threshold: that many different ones.
        engines: engines that belong to it whatever their release says, so that nobody with one key signs a gold engine
            as a bronze one.
    """

    threshold: Annotated[int, Field(ge=1, le=64)]
    engines: tuple[Name, ...] = ()


class Root(Value):
    """Keys by id, and roles. Refuses itself where a rule of it could never hold.

    Attributes:
        version: counts up with every change.
        keys: key id -> key.
        roles: role -> its keys and threshold.
        expires: epoch seconds; None: never.
        tiers: tier -> what its engine releases need beyond the role's threshold.
        revoked: keys that were trusted once and never will be again; kept to say so, and to go on after them.
    """

    apiVersion: Literal["trtops/v1"] = "trtops/v1"  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Root"] = "Root"
    version: Annotated[int, Field(ge=1)] = 1
    keys: dict[str, PublicKey]
    roles: dict[Role, RoleKeys]
    expires: int | None = None
    tiers: dict[str, Tier] = Field(default_factory=dict)
    revoked: dict[str, PublicKey] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Root:
        for key_id, key in self.keys.items():
            # One key under two ids would count twice and meet a threshold of two alone.
            if key.key_id != key_id:
                raise ValueError(f"key {key.key_id} is listed under another id: {key_id}")
        for role, members in self.roles.items():
            if unknown := [key_id for key_id in members.keys if key_id not in self.keys]:
                raise ValueError(f"role {role} names keys that are not listed: {', '.join(unknown)}")
            if members.threshold > len(set(members.keys)):
                raise ValueError(f"role {role} needs {members.threshold} keys and has {len(set(members.keys))}")
        if back := [key_id for key_id, key in self.revoked.items() if key_id in self.keys or key.key_id != key_id]:
            raise ValueError(f"revoked keys are listed as trusted, or under another id: {', '.join(back)}")
        signers = len(self.members("release")[0])
        for tier, rule in self.tiers.items():
            if rule.threshold > signers:
                raise ValueError(f"tier {tier} needs {rule.threshold} release keys and there are {signers}")
        return self

    def members(self, role: Role) -> tuple[tuple[PublicKey, ...], int]:
        """Keys and threshold of a role; no key at all (so nothing verifies) where the role is not listed."""
        listed = self.roles.get(role)
        return (
            (tuple(self.keys[key_id] for key_id in dict.fromkeys(listed.keys)), listed.threshold) if listed else ((), 1)
        )

    def signatures_on(self, engine: str, tier: str) -> int:
        """How many release keys have to sign an engine release: the most that role, tier or engine ask for."""
        rules = [rule for name, rule in self.tiers.items() if name == tier or engine in rule.engines]
        return max([self.members("release")[1], *(rule.threshold for rule in rules)])

    @property
    def followed(self) -> bool:
        """Whether a newer version can follow: without root keys nobody can vouch for one."""
        return "root" in self.roles

    @property
    def refreshed(self) -> bool:
        """Whether a snapshot of all channels has to be there, signed by an online key."""
        return "refresh" in self.roles


def root_of(keys: dict[Role, PublicKey]) -> Root:
    """A root that trusts one key for each role."""
    return Root(
        keys={key.key_id: key for key in keys.values()},
        roles={role: RoleKeys(keys=(key.key_id,)) for role, key in keys.items()},
    )


def changes(old: Root, new: Root) -> tuple[str, ...]:
    """What a version of the root changes of another, in words, for who is to sign it. Pure."""
    said: list[str] = []
    for role in sorted(old.roles.keys() | new.roles.keys()):
        (before, was), (after, now) = old.members(role), new.members(role)
        gone = {key.key_id for key in before} - {key.key_id for key in after}
        come = {key.key_id for key in after} - {key.key_id for key in before}
        said += [f"{role}: no longer trusts {key_id[:12]}" for key_id in sorted(gone)]
        said += [f"{role}: trusts {key_id[:12]}" for key_id in sorted(come)]
        if was != now and before and after:
            said.append(f"{role}: takes {now} of {len(after)} keys, not {was}")
    said += [f"revokes {key_id[:12]} for ever" for key_id in sorted(new.revoked.keys() - old.revoked.keys())]
    said += [f"forgets that {key_id[:12]} was revoked" for key_id in sorted(old.revoked.keys() - new.revoked.keys())]
    said += [
        f"tier {tier}: changes"
        for tier in sorted(old.tiers.keys() | new.tiers.keys())
        if old.tiers.get(tier) != new.tiers.get(tier)
    ]
    if old.expires != new.expires:
        said.append("never expires" if new.expires is None else f"expires at {_day(new.expires)}")
    return tuple(said)


def _day(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
