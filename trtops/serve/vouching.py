"""Whether trusted keys still vouch for what runs: a key may be revoked long after what it signed was loaded.

What runs keeps serving (design §4.8): to stop it would be an outage that a thief could cause. Health says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops.release.doubts import doubtful, signed_anew
from trtops.release.layout import SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.errors import Revoked
    from trtops.release.root import Root
    from trtops.serve.pull import Pulled


class Vouching:
    """Asks once for each root and what runs: signatures cost time, and most looks find nothing new."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self._vouched: dict[str, tuple[Pulled, int]] = {}

    def ask(
        self, name: str, pulled: Pulled, root: Root, read: Callable[[str], bytes | None]
    ) -> tuple[Pulled, str | None]:
        """As :func:`vouched_again`, of an engine by its name."""
        before = self._vouched.get(name)
        if before is not None and before[0] is pulled and before[1] == root.version:
            return pulled, None
        pulled, doubt = vouched_again(pulled, root, read)
        if doubt is None:
            self._vouched[name] = pulled, root.version
        return pulled, doubt


def vouched_again(pulled: Pulled, root: Root, read: Callable[[str], bytes | None]) -> tuple[Pulled, str | None]:
    """Hold what runs against the keys that are trusted now.

    What was signed anew under the same name, since its key was revoked, is taken from the registry.

    Args:
        pulled: what runs.
        root: the trusted keys.
        read: reads a document by its name in the registry.

    Returns:
        what runs, with the documents that vouch for it now; and why nobody vouches for some of it, None if all is well.
    """
    doubts = doubtful(pulled.documents, root)
    anew: dict[str, bytes] = {}
    for name in doubts:
        body = signed_anew(name, pulled.documents[name], root, read)
        if body is not None:
            anew[name] = body
    left = [error for name, error in doubts.items() if name not in anew]
    if anew:
        pulled = replace(pulled, documents={**pulled.documents, **anew})
    if not left:
        return pulled, None
    first = left[0]
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return pulled, f"what runs was {first.what}: {first.where}{more}; it serves on: {_remedy(left)}"


def _remedy(left: Sequence[Revoked]) -> str:
    """What to do. To release again signs no secret anew; who has the key could have chosen its value."""
    names = [str(error.where) for error in left]
    secrets = [name.removeprefix(SECRETS) for name in names if name.startswith(SECRETS)]
    found = [] if len(secrets) == len(names) else ["release it again"]
    for secret in secrets:
        engine, _, path = secret.partition("/")
        found.append(f"trtops secret seal {engine} {path}")
    return "; ".join(found)
