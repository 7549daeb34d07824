"""Signatures that documents in a registry have, and those that they lack.

Engine releases of some tiers take more than one release key: signatures are gathered where the release is to be
published. Whoever releases first writes what is to be signed, which no pointer names. Others add their signatures
there. Then the first one runs it again, and what is published carries all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trtops.digest import Value
from trtops.errors import TrustError
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release import layout
from trtops.release.documents import ConfigRelease, EngineRelease, Provenance
from trtops.release.envelope import cosign, signers_of, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.release.documents import Binding
    from trtops.release.fetch import Readable
    from trtops.release.root import Root

V = TypeVar("V", bound=Value)
Documents = dict[str, tuple[Value, bytes]]
"""Name -> a document and its envelope."""


def gathered(registry: Readable, root: Root, documents: Mapping[str, tuple[Value, bytes]]) -> Documents:
    """The same documents, engine releases with the signatures that other keys have given them in the registry.

    Raises:
        Unavailable: the registry is away.
    """
    found = dict(documents)
    for name, (value, body) in documents.items():
        if not isinstance(value, EngineRelease) or root.signatures_on(value.engine, value.tier) == 1:
            continue
        there = registry.read(name)
        if there is not None and signers_of(there, EngineRelease, root):
            try:
                found[name] = value, cosign(body, (), there)
            except TrustError:  # another document under this name: writing it will say so
                continue
    return found


def whole(registry: Readable, root: Root, binding: Binding) -> bool:
    """Whether all that a binding names is there and vouched for; what a revoked key signed is published anew.

    Raises:
        Unavailable: the registry is away.
    """
    for arm in binding.arms:
        release = _there(registry, root, layout.engine_release(binding.engine, arm.engine_release), EngineRelease)
        config = _there(registry, root, layout.config_release(binding.engine, arm.config_release), ConfigRelease)
        if release is None or config is None:
            return False
        if _there(registry, root, layout.verdict(release.spec_verdict), Verdict) is None:
            return False
        for one in release.artifacts:
            proofs: list[tuple[str, type[Value]]] = [
                (layout.evidence(one.evidence), Evidence),
                (layout.verdict(one.verdict), Verdict),
                *([(layout.provenance(one.provenance), Provenance)] if one.provenance else ()),
            ]
            if any(_there(registry, root, name, kind) is None for name, kind in proofs):
                return False
    return True


def _there(registry: Readable, root: Root, name: str, kind: type[V]) -> V | None:
    body = registry.read(name)
    try:
        return verify(body, kind, root, where=name).value if body is not None else None
    except TrustError:
        return None


def short_of(root: Root, documents: Mapping[str, tuple[Value, bytes]]) -> TrustError | None:
    """The error that says which engine release needs more signatures, and how to give them; None if none does."""
    for name, (value, body) in documents.items():
        if not isinstance(value, EngineRelease):
            continue
        have, needed = len(signers_of(body, EngineRelease, root)), root.signatures_on(value.engine, value.tier)
        if 0 < have < needed:
            return TrustError(
                f"{have} of the {needed} release keys that it takes have signed this release of {value.engine} "
                f"(tier {value.tier})",
                where=name,
                fix="a holder of another release key runs: "
                f"trtops trust sign {value.engine}@{value.digest()} --as KEY; then run this again",
            )
    return None
