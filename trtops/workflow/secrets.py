"""``trtops secret``: values that only a service's process may read, sealed with age, published apart from releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError, TrtopsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pydantic import SecretStr

    from trtops.release.sealing import Identity
    from trtops.workflow.workspace import Workspace

IDENTITY = "identity.age"


@dataclass(frozen=True)
class Audited:
    """One secret that a runtime config refers to, and what is known of it here.

    Attributes:
        path: of the reference, ``db/password``.
        ok: whether it is sealed, signed and, where this home has an identity, opens.
        state: in words.
    """

    path: str
    ok: bool
    state: str


def identity_path(workspace: Workspace) -> Path:
    """Where this home keeps its age identity."""
    return workspace.resolved.home / "keys" / IDENTITY


def identity_of(workspace: Workspace) -> Identity | None:
    """The identity of this home; None if none was made.

    Raises:
        InputError, StorageError, TrustError: the file is wrong, unreadable, or others may read it.
    """
    from trtops.release.sealing import keygen

    path = identity_path(workspace)
    return keygen(path) if path.exists() else None


def keygen(workspace: Workspace) -> Identity:
    """The identity of this home, made if there is none yet.

    Raises:
        StorageError, TrustError: as for :func:`identity_of`.
    """
    from trtops.release.sealing import keygen as make

    return make(identity_path(workspace))


def seal(workspace: Workspace, engine: str, path: str, value: SecretStr, recipients: Sequence[str]) -> tuple[str, ...]:
    """Seal a value for one engine, environment and place, and publish it.

    Args:
        workspace: whose environment and registry.
        engine: that may use it.
        path: as in ``secret:PATH``.
        value: what to seal.
        recipients: age public keys; empty: those that ``governance/recipients.yaml`` lists for the engine, else this
            home's own, made if there is none.

    Returns:
        the recipients.

    Raises:
        InputError: a recipient or path is none, the engine does not exist, or the value is empty or too large.
        Conflict, StorageError, Unavailable: the registry.
    """
    from trtops.spec.load import find_engine

    name = find_engine(workspace.root, engine).name
    chosen = tuple(recipients) or _listed(workspace, name) or (keygen(workspace).recipient,)
    _publish(workspace, name, path, value, chosen)
    return chosen


def open_secret(workspace: Workspace, engine: str, path: str) -> SecretStr:
    """Open a sealed value with this home's identity, in memory.

    Raises:
        InputError: this home has no identity, the engine does not exist, or the path is none.
        TrustError: it is forged, misplaced, or sealed to others.
        Unavailable: there is no such secret, or the registry is away.
    """
    from trtops.release.sealing import checked_path, fetch_secret
    from trtops.spec.load import find_engine

    name = find_engine(workspace.root, engine).name
    place = {"engine": name, "environment": workspace.environment, "path": checked_path(path)}
    return fetch_secret(workspace.registry(), workspace.keys.root(), _own(workspace), **place)


def rotate(
    workspace: Workspace, engine: str, paths: Sequence[str], recipients: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Seal secrets anew, to who may open them from now on. Whoever is left out still knows what they have opened.

    Args:
        workspace: whose environment and registry; its home opens them.
        engine: whose secrets.
        paths: which; empty: all of the engine.
        recipients: as for :func:`seal`.

    Returns:
        path -> who may open it now.

    Raises:
        InputError: there is nothing sealed, or this home has no identity.
        TrustError: one is forged, misplaced, or sealed to others; none was changed then.
        Conflict, StorageError, Unavailable: the registry. Run it again: each secret is one write.
    """
    from trtops.release import layout
    from trtops.release.sealing import checked_path, fetch_secret
    from trtops.spec.load import find_engine

    name, identity = find_engine(workspace.root, engine).name, _own(workspace)
    registry, root = workspace.registry(), workspace.keys.root()
    prefix = layout.secrets(name)
    wanted = tuple(map(checked_path, paths)) or tuple(found.removeprefix(prefix) for found in registry.names(prefix))
    if not wanted:
        raise InputError(f"nothing is sealed for {name} in {workspace.environment}", fix="trtops secret seal")
    place = {"engine": name, "environment": workspace.environment}
    values = {path: fetch_secret(registry, root, identity, path=path, **place) for path in wanted}
    chosen = tuple(recipients) or _listed(workspace, name) or (identity.recipient,)
    for path, value in values.items():
        _publish(workspace, name, path, value, chosen)
    return dict.fromkeys(values, chosen)


def _publish(workspace: Workspace, engine: str, path: str, value: SecretStr, recipients: Sequence[str]) -> None:
    from trtops.release.sealing import checked_path, next_generation, publish_secret
    from trtops.release.sealing import seal as make
    from trtops.workflow.trust import keep_fresh

    registry, now = workspace.registry(), workspace.now()
    secret = make(
        value,
        engine=engine,
        environment=workspace.environment,
        path=path,
        recipients=recipients,
        created=now,
        generation=next_generation(registry, workspace.keys.root(), engine, checked_path(path), now),
    )
    publish_secret(registry, workspace.keys, secret)
    keep_fresh(workspace)


def _own(workspace: Workspace) -> Identity:
    identity = identity_of(workspace)
    if identity is None:
        raise InputError(
            "this home has no identity to open secrets with", fix="run this where one of its recipients is"
        )
    return identity


def _listed(workspace: Workspace, engine: str) -> tuple[str, ...]:
    from trtops.release.recipients import load_recipients

    listed = load_recipients(workspace.root)
    return listed.of(engine, workspace.environment) if listed is not None else ()


def audit(workspace: Workspace, engine: str) -> tuple[Audited, ...]:
    """Look at every secret that an engine's runtime config refers to. No value is shown.

    Raises:
        InputError: there is no such engine, or its runtime config or the list of recipients is wrong.
        Unavailable: the registry is away.
    """
    from functools import partial

    from trtops.release.sealing import references
    from trtops.spec.load import find_engine
    from trtops.workflow.check import runtime_of

    folder = find_engine(workspace.root, engine)
    runtime = runtime_of(folder, workspace.environment)
    if runtime is None:
        return ()
    look = partial(_audited, workspace, folder.name, identity_of(workspace), _listed(workspace, folder.name))
    return tuple(look(path) for path in references(runtime.config))


def _audited(
    workspace: Workspace, engine: str, identity: Identity | None, listed: tuple[str, ...], path: str
) -> Audited:
    from trtops.release import layout
    from trtops.release.documents import SealedSecret
    from trtops.release.envelope import verify
    from trtops.release.sealing import fetch_secret

    registry, root = workspace.registry(), workspace.keys.root()
    where = layout.secret(engine, path)
    body = registry.read(where)
    if body is None:
        return Audited(path, ok=False, state="not sealed: trtops secret seal")
    try:
        sealed = verify(body, SealedSecret, root, where=where).value
        if identity is not None and identity.recipient in sealed.recipients:
            place = {"engine": engine, "environment": workspace.environment, "path": path}
            fetch_secret(registry, root, identity, **place)
    except TrtopsError as error:
        return Audited(path, ok=False, state=error.what)
    if listed and sealed.recipients != listed:
        return Audited(
            path, ok=False, state="sealed to others than governance/recipients.yaml lists: trtops secret rotate"
        )
    if identity is None:
        return Audited(path, ok=True, state="sealed; this home has no identity to open it")
    if identity.recipient not in sealed.recipients:
        return Audited(path, ok=bool(listed), state="this identity cannot open the secret: it is sealed to others")
    return Audited(path, ok=True, state="sealed, and opens here")


def checked_value(text: str) -> SecretStr:
    """A value as it was typed or piped, less one line break at its end.

    Raises:
        InputError: it is empty.
    """
    from pydantic import SecretStr

    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise InputError("the value is empty", fix='pipe it: printf %s "$PASSWORD" | trtops secret seal ENGINE PATH')
    return SecretStr(value)
