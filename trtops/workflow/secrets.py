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
        recipients: age public keys; empty: this home's own, made if there is none.

    Returns:
        the recipients.

    Raises:
        InputError: a recipient or path is none, the engine does not exist, or the value is empty or too large.
        Conflict, StorageError, Unavailable: the registry.
    """
    from trtops.release.sealing import publish_secret
    from trtops.release.sealing import seal as make
    from trtops.spec.load import find_engine

    name = find_engine(workspace.root, engine).name
    chosen = tuple(recipients) or (keygen(workspace).recipient,)
    secret = make(
        value, engine=name, environment=workspace.environment, path=path, recipients=chosen, created=workspace.now()
    )
    publish_secret(workspace.registry(), workspace.keys, secret)
    return chosen


def audit(workspace: Workspace, engine: str) -> tuple[Audited, ...]:
    """Look at every secret that an engine's runtime config refers to. No value is shown.

    Raises:
        InputError: there is no such engine, or its runtime config is wrong.
        Unavailable: the registry is away.
    """
    from trtops.release import layout
    from trtops.release.sealing import fetch_secret, references
    from trtops.spec.load import find_engine
    from trtops.workflow.check import runtime_of

    folder = find_engine(workspace.root, engine)
    runtime = runtime_of(folder, workspace.environment)
    if runtime is None:
        return ()
    registry, identity = workspace.registry(), identity_of(workspace)
    found = []
    for path in references(runtime.config):
        if registry.read(layout.secret(folder.name, path)) is None:
            found.append(Audited(path, ok=False, state="not sealed: trtops secret seal"))
        elif identity is None:
            found.append(Audited(path, ok=True, state="sealed; this home has no identity to open it"))
        else:
            root = workspace.keys.root()
            try:
                where = {"engine": folder.name, "environment": workspace.environment, "path": path}
                fetch_secret(registry, root, identity, **where)
            except TrtopsError as error:
                found.append(Audited(path, ok=False, state=error.what))
            else:
                found.append(Audited(path, ok=True, state="sealed, and opens here"))
    return tuple(found)


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
