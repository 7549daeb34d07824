"""``trtops trust``: who may sign what, from one version of the root to the next.

A version is made and signed where root keys are. It takes effect once enough root keys of the version before, and of
its own, have signed it: then it is published, and services follow it by themselves. Where keys of one machine are not
enough, a file goes from machine to machine.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import Conflict, InputError, StorageError, TrustError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.registry.port import Registry
    from trtops.release.keys import Signer
    from trtops.release.root import PublicKey, Role, Root, Tier
    from trtops.workflow.workspace import Workspace

DAY = 86_400
DEFAULT_DAYS = 365
_HEX = re.compile(r"[0-9a-f]{64}")
_MAX_FILE = 1_000_000
_FEWEST = 4


@dataclass(frozen=True)
class Turned:
    """A new version of the root.

    Attributes:
        root: the version.
        path: where its signed form is.
        problem: why it does not count yet; None: it is published and trusted here.
        changes: what it changes of the root that this home trusts, in words.
    """

    root: Root
    path: Path
    problem: str | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """The root that this home trusts.

    Attributes:
        root: the version.
        held: ids of keys whose private half is here.
        newest: version that the environment's registry has; None: it has none.
    """

    root: Root
    held: frozenset[str]
    newest: int | None


def init(workspace: Workspace, days: int = DEFAULT_DAYS) -> Turned:
    """Make this home's root one that can be followed: with root keys, and an online key for refreshing.

    Keys that are there already keep their roles. Services that were handed the root of before need the new one by hand,
    once.

    Raises:
        InputError: that was done already.
        Conflict, StorageError, TrustError, Unavailable: keys, or the registry.
    """
    from trtops.release.root import ALL_ROLES, Root, root_of

    keys = workspace.keys
    present = keys.root()
    if present.followed:
        fix = "see trtops trust show; trtops trust rotate and revoke change it"
        raise InputError(f"this home has a root of version {present.version} that can be followed", fix=fix)
    own = root_of({role: keys.made(role).public for role in ALL_ROLES})
    root = Root.model_validate(
        {
            "version": present.version + 1,
            "keys": {**own.model_dump()["keys"], **present.model_dump()["keys"]},
            "roles": {**own.model_dump()["roles"], **present.model_dump()["roles"]},
            "expires": workspace.now() + days * DAY,
        }
    )
    return _take_effect(workspace, root, _signed(workspace, root, present))


def show(workspace: Workspace) -> Shown:
    """What this home trusts, which private keys are here, and what the registry has.

    Raises:
        StorageError, TrustError, Unavailable: keys, or the registry.
    """
    root = workspace.keys.root()
    held = frozenset(workspace.keys.all_signers())
    versions = [int(name.rpartition("/")[2]) for name in _published(workspace.registry())]
    return Shown(root, held, max(versions, default=None))


def rotate(workspace: Workspace, role: Role, key: str | None = None) -> Turned:
    """Trust another key for a role. The old one still counts for what it has signed, until it is revoked.

    Args:
        workspace: the home.
        role: of the key.
        key: a public key in hexadecimal, or a file that holds one, of somebody else; None: a new one of this home,
            which signs from now on.

    Raises:
        InputError: it is no key, or trusted or revoked already.
        Conflict, StorageError, TrustError, Unavailable: keys, or the registry.
    """
    from trtops.release.lineage import with_key

    present = changeable(workspace)
    public = _public(key) if key is not None else workspace.keys.renewed(role).public
    return turn(workspace, present, with_key(present, role, public))


def change(
    workspace: Workspace,
    *,
    threshold: int | None,
    tiers: Mapping[str, Tier],
    days: int | None,
) -> Turned:
    """Another threshold of root keys, other tiers, or a later expiry.

    Raises:
        InputError: nothing is to change, or the root could not hold.
        Conflict, StorageError, TrustError, Unavailable: keys, or the registry.
    """
    from trtops.release.lineage import with_rules

    if threshold is None and not tiers and days is None:
        raise InputError("nothing is to change", fix="give --threshold, --tier or --expires")
    present = changeable(workspace)
    expires = None if days is None else workspace.now() + days * DAY
    thresholds: dict[Role, int] = {} if threshold is None else {"root": threshold}
    return turn(workspace, present, with_rules(present, thresholds=thresholds, tiers=tiers, expires=expires))


def sign_root(workspace: Workspace, path: Path, signer: Signer) -> Turned:
    """Add a signature to a version of the root that waits for one, in its file.

    Raises:
        InputError: it is no such file.
        StorageError, TrustError: it cannot be read or written, or holds no root.
    """
    from trtops.durable import write_durably
    from trtops.release.envelope import cosign, read_unverified
    from trtops.release.root import Root, changes

    body = _read(path)
    root = read_unverified(body, Root, where=str(path)).value
    present = workspace.keys.root()
    body = cosign(body, [signer])
    write_durably(path, [body])
    return Turned(root, path, _problem(present, root, body), changes(present, root))


def waiting(workspace: Workspace, path: Path) -> Turned:
    """What a version of the root that waits for signatures says and changes, before anybody signs it.

    Raises:
        as :func:`sign_root`.
    """
    from trtops.release.envelope import read_unverified
    from trtops.release.root import Root, changes

    body = _read(path)
    root = read_unverified(body, Root, where=str(path)).value
    present = workspace.keys.root()
    return Turned(root, path, _problem(present, root, body), changes(present, root))


def publish(workspace: Workspace, path: Path | None = None) -> tuple[Root, ...]:
    """Publish a version that is signed, or every version that this home has kept, in the environment's registry.

    Args:
        workspace: the home, and the environment.
        path: file of a version that waits; None: those that are in force.

    Returns:
        the versions that the registry has now and had not before.

    Raises:
        InputError: it is no such file, or there is nothing to publish.
        TrustError: too few root keys signed it.
        Conflict, StorageError, Unavailable: the registry.
    """
    from trtops.release.lineage import next_root

    keys = workspace.keys
    if path is not None:
        body = _read(path)
        root = next_root(keys.root(), body, where=str(path))
        return (_take_effect(workspace, root, body).root,)
    _followed(workspace)
    return publish_kept(workspace)


def publish_kept(workspace: Workspace) -> tuple[Root, ...]:
    """Publish the versions of the root that this home has kept and the environment's registry lacks.

    Raises:
        Conflict, StorageError, Unavailable: the registry.
    """
    registry = workspace.registry()
    there = {int(name.rpartition("/")[2]) for name in _published(registry)}
    kept = sorted((int(one.stem), one) for one in _folder(workspace).glob("*.json") if one.stem.isdigit())
    new = [_publish(registry, version, _read(one)) for version, one in kept if version not in there]
    return tuple(root for root in new if root is not None)


def update(workspace: Workspace) -> tuple[Root, Root]:
    """Follow the root in the environment's registry, as a service does.

    Returns:
        the version that this home trusted, and the one that it trusts now.

    Raises:
        StorageError, TrustError, Unavailable: a version was refused, or the registry is away.
    """
    from trtops.release.lineage import latest_root

    present = workspace.keys.root()
    newest = latest_root(present, workspace.registry())
    if newest != present:
        workspace.keys.adopt(newest)
    return present, newest


def sign_release(workspace: Workspace, engine: str, digest: str, signer: Signer) -> tuple[int, int]:
    """Add a signature to an engine release in the environment's registry, for tiers that take more than one.

    Returns:
        how many trusted keys have signed it now, and how many it takes.

    Raises:
        InputError: there is no such release.
        Conflict: somebody else signs it now.
        StorageError, TrustError, Unavailable: the registry, or the key is no release key.
    """
    from trtops.digest import Digest
    from trtops.release import layout
    from trtops.release.documents import EngineRelease
    from trtops.release.envelope import cosign, read_unverified, signers_of

    root = workspace.keys.root()
    members, _ = root.members("release")
    if signer.key_id not in {key.key_id for key in members}:
        fix = "trust it first: trtops trust rotate release --key PUBLIC"
        raise TrustError(f"key {signer.key_id[:12]} is no release key", fix=fix)
    try:
        name = layout.engine_release(engine, Digest.parse(digest))
    except ValueError:
        raise InputError(f"not the digest of a release: {digest[:80]!r}", fix="write ENGINE@sha256:…") from None
    registry = workspace.registry()
    there = registry.read(name)
    if there is None:
        fix = "let its publisher run trtops release: it writes what is to be signed, and moves nothing"
        raise InputError("there is no such release", where=name, fix=fix)
    release = read_unverified(there, EngineRelease, where=name)
    if str(release.digest) != digest or not signers_of(there, EngineRelease, root):
        raise TrustError("this is not what a release key signed before", where=name, fix="release it again")
    registry.swap(name, cosign(there, [signer]), there)
    signed = signers_of(cosign(there, [signer]), EngineRelease, root)
    return len(signed), root.signatures_on(release.value.engine, release.value.tier)


def keep_fresh(workspace: Workspace) -> None:
    """After a channel or a secret has moved: take a new snapshot, where the root asks for one and the key is here.

    Where the key is elsewhere, its schedule does it; until then services hold to the floor of before. Versions of the
    root that the environment lacks, and this home has kept, are published first: the snapshot names the newest.

    Raises:
        StorageError, TrustError, Unavailable: the registry, or a snapshot that is forged.
    """
    from contextlib import suppress

    from trtops.release.refresh import refresh_snapshot
    from trtops.workflow.release import lifetime_of

    keys = workspace.keys
    if keys.root().refreshed and keys.holds("refresh"):
        publish_kept(workspace)
        with suppress(Conflict):  # somebody else took one just now
            refresh_snapshot(
                workspace.registry(),
                keys,
                workspace.environment,
                now=workspace.now(),
                lifetime=lifetime_of(workspace),
            )


def _followed(workspace: Workspace) -> Root:
    present = workspace.keys.root()
    if not present.followed:
        raise InputError("this home's root has no root keys, so that nothing can follow it", fix="trtops trust init")
    return present


def changeable(workspace: Workspace) -> Root:
    """The root, where this home holds one of its root keys: looked at before any new key is made.

    Raises:
        InputError: no root can follow it.
        StorageError, TrustError: keys; or there is no root key here.
    """
    present = _followed(workspace)
    if not {key.key_id for key in present.members("root")[0]} & workspace.keys.all_signers().keys():
        raise TrustError(
            "there is no root key here", fix="run this where one is kept, or bring a copy to TRTOPS_HOME/keys"
        )
    return present


def known(root: Root, start: str) -> str:
    """The id of the trusted key that starts like that.

    Raises:
        InputError: none does, or several.
    """
    found = [key_id for key_id in root.keys if key_id.startswith(start.lower())]
    if len(start) < _FEWEST or len(found) != 1:
        why = "several keys start" if len(found) > 1 else "no trusted key starts"
        raise InputError(f"{why} with {start[:64]!r}", fix="see trtops trust show; give its first twelve digits")
    return found[0]


def _public(text: str) -> PublicKey:
    from trtops.release.root import PublicKey

    path = Path(text).expanduser()
    value = _read(path).decode("ascii", "replace").strip() if path.is_file() else text
    if not _HEX.fullmatch(value):
        raise InputError("not a public key", where=text[:80], fix="64 hexadecimal digits, as trtops trust show prints")
    return PublicKey(public=value)


def turn(workspace: Workspace, present: Root, new: Root) -> Turned:
    """Sign the next version by the root keys that are here; publish and trust it if that is enough.

    Raises:
        Conflict, StorageError, TrustError, Unavailable: keys, or the registry.
    """
    body = _signed(workspace, new, present)
    problem = _problem(present, new, body)
    if problem is None:
        return _take_effect(workspace, new, body)
    from trtops.durable import write_durably

    path = _folder(workspace) / f"{new.version}.unsigned.json"
    write_durably(path, [body])
    return Turned(new, path, problem)


def _problem(present: Root, new: Root, body: bytes) -> str | None:
    from trtops.release.lineage import next_root

    if new.version == present.version:
        return None
    try:
        next_root(present, body)
    except TrustError as error:
        return error.what
    return None


def _signed(workspace: Workspace, new: Root, present: Root) -> bytes:
    """A version, signed by every root key of it and of the one before that this home holds."""
    from trtops.release.envelope import sign

    wanted = {key.key_id for root in (new, present) for key in root.members("root")[0]}
    signers: Sequence[Signer] = [one for key_id, one in workspace.keys.all_signers().items() if key_id in wanted]
    if not signers:
        raise TrustError("there is no root key here", fix="run this where one is kept")
    return sign(new, signers)


def _take_effect(workspace: Workspace, root: Root, body: bytes) -> Turned:
    """Publish, then keep, then trust: whoever dies in between runs it again, or ``trtops trust update``."""
    from trtops.durable import write_durably

    _publish(workspace.registry(), root.version, body)
    path = _folder(workspace) / f"{root.version}.json"
    write_durably(path, [body])
    workspace.keys.adopt(root)
    path.with_name(f"{root.version}.unsigned.json").unlink(missing_ok=True)
    keep_fresh(workspace)
    return Turned(root, path)


def _publish(registry: Registry, version: int, body: bytes) -> Root | None:
    from trtops.release import layout
    from trtops.release.envelope import read_unverified
    from trtops.release.root import Root

    name = layout.root(version)
    try:
        new = registry.create(name, body)
    except Conflict:
        there = registry.read(name)
        if there is not None and read_unverified(there, Root, where=name).value == read_unverified(body, Root).value:
            return None  # the same version, signed by other keys as well
        what = f"there is another root of version {version} already"
        raise Conflict(what, where=name, fix="run trtops trust update, look, then this again") from None
    return read_unverified(body, Root).value if new else None


def _published(registry: Registry) -> tuple[str, ...]:
    from trtops.release import layout

    return tuple(name for name in registry.names(layout.ROOTS) if name.rpartition("/")[2].isdigit())


def _folder(workspace: Workspace) -> Path:
    return workspace.resolved.home / "roots"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {os.strerror(error.errno or 0)}", where=str(path)) from error
    if len(body) > _MAX_FILE:
        raise InputError(f"the file is larger than {_MAX_FILE} bytes", where=str(path))
    return body
