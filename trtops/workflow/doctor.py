"""``trtops doctor``: what is wrong with store, registry, keys, secrets, policies and backends here, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtops.errors import TrtopsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.registry.nacos.registry import NacosRegistry
    from trtops.release.root import Root
    from trtops.workflow.workspace import Workspace

State = Literal["good", "note", "bad"]
_KIND, _PROBE = "doctor", "probe"
_DAY = 86_400
_SOON_DAYS = 30


@dataclass(frozen=True)
class Examined:
    """One thing that was looked at.

    Attributes:
        subject: what.
        state: ``good``; ``note``: works, and is worth knowing; ``bad``: something will fail.
        words: what was found.
        fix: what to do; None where there is nothing.
    """

    subject: str
    state: State
    words: str
    fix: str | None = None


def examine(workspace: Workspace) -> tuple[Examined, ...]:
    """Look at everything; one thing that fails hides no other. Changes nothing, makes no key."""
    looks: dict[str, Callable[[Workspace], Iterator[Examined]]] = {
        "store": _store,
        "registry": _registry,
        "keys": _keys,
        "secrets": _secrets,
        "policies": _policies,
        "backends": _backends,
    }
    return tuple(one for subject, look in looks.items() for one in _looked(workspace, subject, look))


def _looked(workspace: Workspace, subject: str, look: Callable[[Workspace], Iterator[Examined]]) -> Iterator[Examined]:
    try:
        yield from look(workspace)
    except TrtopsError as error:
        where = f"{error.where}: " if error.where else ""
        yield Examined(subject, "bad", f"{where}{error.what}", error.fix)


def _store(workspace: Workspace) -> Iterator[Examined]:
    store = workspace.store
    store.keep(_KIND, _PROBE, b"{}")
    store.forget(_KIND, _PROBE)
    yield Examined("store", "good", f"{workspace.resolved.store} can be read and written")


def _registry(workspace: Workspace) -> Iterator[Examined]:
    from trtops.registry.file import FileRegistry
    from trtops.registry.nacos.registry import NacosRegistry
    from trtops.release.fetch import channels

    registry = workspace.registry()
    count = len(channels(registry, workspace.environment))
    there = f"{count} channel{'' if count == 1 else 's'} in {workspace.environment}"
    yield Examined("registry", "good", f"{workspace.resolved.registry} answers: {there}")
    if isinstance(registry, NacosRegistry):
        yield from _nacos(registry)
    elif isinstance(registry, FileRegistry) and workspace.environment != "local":
        yield Examined("registry", "note", "a file registry is this machine's own", "share its folder, or use a Nacos")


def _nacos(registry: NacosRegistry) -> Iterator[Examined]:
    fix = f"let an administrator run: trtops registry init nacos --env {registry.environment}"
    if registry.may_write():
        yield Examined("registry", "good", "this user may read and write: it may publish")
    else:
        yield Examined("registry", "note", "this user may read and not write: it may serve, not publish")
    if registry.may_listen():
        yield Examined("registry", "good", "this user may listen: changes are pushed")
    else:
        words = "this user may not listen: changes arrive by looking, up to 10 s late"
        yield Examined("registry", "bad", words, fix)


def _keys(workspace: Workspace) -> Iterator[Examined]:
    from trtops.release.keys import load_root
    from trtops.release.root import ALL_ROLES, ROLES

    home = workspace.resolved.home
    if not (home / "root.json").exists():
        yield Examined("keys", "note", f"no keys in {home} yet: made on first use", None)
        return
    root = load_root(home / "root.json")
    if root.expires is not None and root.expires <= workspace.now() + _SOON_DAYS * _DAY:
        days = (root.expires - workspace.now()) // _DAY
        words = "root.json has expired" if days < 0 else f"root.json expires in {days} days"
        fix = "trtops trust set --expires DAYS" if root.followed else "hand a new root.json to this machine"
        yield Examined("keys", "bad" if days < 0 else "note", words, fix)
    if not root.followed and workspace.environment != "local":
        words = "nothing can follow root.json: a stolen key can only be replaced by hand, on every machine"
        yield Examined("keys", "note", words, "trtops trust init")
    yield from _freshness(workspace, root)
    for role in ALL_ROLES if root.followed else ROLES:
        if not (home / "keys" / f"{role}.pem").exists():
            yield Examined("keys", "note", f"there is no {role} key here: signed elsewhere")
            continue
        key_id = workspace.keys.signer(role).key_id
        members, threshold = root.members(role)
        if key_id not in {key.key_id for key in members}:
            words = f"the {role} key {key_id[:12]} is not trusted by root.json: what it signs is refused"
            yield Examined("keys", "bad", words, "bring the key back that root.json names, or hand out a new root.json")
        else:
            yield Examined("keys", "good", f"{role}: {key_id[:12]}, {threshold} of {len(members)} sign")


def _freshness(workspace: Workspace, root: Root) -> Iterator[Examined]:
    """The snapshot of all channels, where the root asks for one."""
    from trtops.errors import TrustError, Unavailable
    from trtops.release.snapshot import fetch_snapshot

    try:
        found = fetch_snapshot(workspace.registry(), root, workspace.environment, workspace.now())
    except (TrustError, Unavailable) as error:
        yield Examined("keys", "bad", f"services load nothing new: {error.what}", error.fix)
        return
    if found is None:
        return
    if found.expires is None:
        words = "the snapshot of the channels never expires: who holds it up is not noticed"
        yield Examined("keys", "note", words, "set `expires` (days) and let a schedule run: trtops registry refresh")
    else:
        hours = (found.expires - workspace.now()) // 3600
        yield Examined("keys", "good", f"snapshot {found.version} of the channels is fresh for {hours} h")


def _secrets(workspace: Workspace) -> Iterator[Examined]:
    from trtops.workflow.secrets import identity_of

    identity = identity_of(workspace)
    if identity is None:
        yield Examined("secrets", "note", "no age identity here: sealed secrets do not open", "trtops secret keygen")
    else:
        yield Examined("secrets", "good", f"sealed secrets open here, as {identity.recipient}")


def _policies(workspace: Workspace) -> Iterator[Examined]:
    from trtops.workflow.judge import open_gate

    with open_gate(workspace) as gate:
        rules = sum(len(gate.policies.of_stage(stage)) for stage in ("source", "spec", "evidence", "release"))
        yield Examined("policies", "good", f"{rules} rules, judged by {gate.engine.name} in {workspace.environment}")


def _backends(workspace: Workspace) -> Iterator[Examined]:
    from trtops.backend.select import backend
    from trtops.spec.load import engine_names, find_engine, load_engine

    targets = {}
    for name in engine_names(workspace.root):
        spec = load_engine(find_engine(workspace.root, name)).spec
        targets.update({target.id: target for target in spec.targets})
    for name, target in sorted(targets.items()):
        status = backend(target.backend).status(target)
        if status.can_build and status.can_load:
            yield Examined("backends", "good", f"{name}: builds and runs here ({status.backend} {status.version})")
        else:
            yield Examined("backends", "note", f"{name}: {status.reason}")
    if not targets:
        yield Examined("backends", "note", "there is no engine in this repository", "trtops new NAME --model M.onnx")
