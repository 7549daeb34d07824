"""Documents that held once and are held against the keys of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import Revoked, StorageError, TrustError, Unavailable
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release import layout
from trtops.release.documents import Binding, ConfigRelease, EngineRelease, Provenance, SealedSecret
from trtops.release.envelope import read_unverified, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.digest import Value
    from trtops.release.root import Root

_KINDS: dict[str, type[Value]] = {
    "channels/": Binding,
    "engines/": EngineRelease,
    "configs/": ConfigRelease,
    "provenance/": Provenance,
    "evidence/": Evidence,
    "verdicts/": Verdict,
    layout.SECRETS: SealedSecret,
}
_MOVED = ("channels/", layout.SECRETS)
"""Replaced under their names: a newer one is taken as a pointer or as a secret, not as the same one signed anew."""


def doubtful(documents: Mapping[str, bytes], root: Root) -> dict[str, Revoked]:
    """Documents that nobody vouches for but keys that were revoked, by name, with the reason.

    Args:
        documents: name in the registry -> bytes, all of them verified once.
        root: the keys that are trusted now.
    """
    found = {}
    for name, body in documents.items():
        try:
            verify(body, _kind(name), root, where=name)
        except Revoked as error:  # noqa: PERF203 - each is told
            found[name] = error
        except TrustError:  # a tier that takes more keys since asks so of what is loaded from now on
            continue
    return found


def _kind(name: str) -> type[Value]:
    return next(kind for prefix, kind in _KINDS.items() if name.startswith(prefix))


def signed_anew(name: str, old: bytes, root: Root, read: Callable[[str], bytes | None]) -> bytes | None:
    """The very same document in the registry, vouched for by a trusted key; None if there is none.

    A newer pointer or secret is no such document: those are taken as what they are.

    Args:
        name: of the document.
        old: its bytes, that nobody vouches for any more.
        root: the keys that are trusted now.
        read: reads a document by its name in the registry.
    """
    if name.startswith(_MOVED):
        return None
    kind = _kind(name)
    try:
        body = read(name)
        if body is not None and verify(body, kind, root, where=name).digest == read_unverified(old, kind).digest:
            return body
    except (StorageError, TrustError, Unavailable):  # as before: it is looked at again
        return None
    return None
