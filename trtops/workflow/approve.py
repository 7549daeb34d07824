"""``trtops approve``: a signature over the digest of one engine release, for the gates that count them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import Digest
from trtops.errors import InputError

if TYPE_CHECKING:
    from trtops.release.keys import Signer
    from trtops.workflow.workspace import Workspace

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Approved:
    """What was approved, and as whom.

    Attributes:
        engine: name.
        release: digest of the engine release.
        key: id of the key.
        new: False if this very approval was there already.
    """

    engine: str
    release: Digest
    key: str
    new: bool


def approve(workspace: Workspace, what: str, key: str) -> Approved:
    """Approve a release, in the registry of the workspace's environment.

    Args:
        workspace: whose environment.
        what: ``ENGINE``, for what its stable channel names there, or ``ENGINE@sha256:…``, for a release that a gate
            has refused for want of approvals and that is nowhere yet.
        key: name of a key of this home, made on first use, or path of a private key.

    Raises:
        InputError: it is no release or key, or nothing is released.
        StorageError, TrustError, Unavailable: the key's file, or the registry.
    """
    from trtops.release.approval import approve as publish

    engine, digest = _release(workspace, what)
    signer = signer_of(workspace, key)
    new = publish(workspace.registry(), signer, engine, digest, now=workspace.now())
    return Approved(engine, digest, signer.key_id, new)


def _release(workspace: Workspace, what: str) -> tuple[str, Digest]:
    from trtops.workflow.release import channel_of, current, nothing_released

    name, at, text = what.partition("@")
    engine = Path(name).name
    fix = "write ENGINE, or ENGINE@sha256:… with a digest that trtops status or a refused release shows"
    try:
        channel = channel_of(workspace, engine)
    except ValueError:
        raise InputError(f"not the name of an engine: {name[:80]!r}", fix=fix) from None
    if at:
        try:
            return engine, Digest.parse(text)
        except ValueError:
            raise InputError(f"not the digest of a release: {text[:80]!r}", fix=fix) from None
    registry = workspace.registry()
    found = current(workspace, registry, channel)
    if found is None:
        raise nothing_released(workspace, registry, engine)
    return engine, found.binding.engine_release


def signer_of(workspace: Workspace, key: str) -> Signer:
    """The key of a person: a name in this home, or the path of a private key.

    Raises:
        InputError: it is neither.
        StorageError, TrustError: the file cannot be used.
    """
    from trtops.release.keys import signer_at

    path = Path(key).expanduser()
    if path.name != key or key.endswith(".pem"):
        if not path.is_file():
            raise InputError(
                "there is no such private key", where=key, fix="give its path, or a plain name for a new key"
            )
        return signer_at(path)
    if not _NAME.fullmatch(key):
        raise InputError(f"not the name of a key: {key[:80]!r}", fix="take lower case letters, digits and -_.")
    return signer_at(workspace.resolved.home / "keys" / f"approver-{key}.pem")
