"""Names of documents in a registry. Digests are written ``sha256-<hex>`` there, since names know no colon.

::

    channels/ENGINE/CHANNEL                   the pointer: a signed Binding, moved by compare-and-swap
    bindings/ENGINE/CHANNEL/sha256-…          every Binding that the pointer ever held, immutable
    engines/ENGINE/releases/sha256-…          EngineRelease
    configs/ENGINE/sha256-…                   ConfigRelease
    provenance/sha256-…                       Provenance of an artifact
    evidence/sha256-…  verdicts/sha256-…      Evidence and Verdict that let it through
    secrets/ENGINE/PATH                       SealedSecret, replaced when it is rotated
    approvals/ENGINE/sha256-…/KEY             Approval of an engine release by a key, replaced when it is renewed
    roots/VERSION                             Root of trust of that version, immutable
    snapshot                                  ChannelSnapshot of the environment, replaced when it is refreshed

The digest in a name is that of the document's value (:meth:`trtops.digest.Value.digest`), not of its envelope: a
second signature, or another key's, leaves the name as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.digest import Digest
    from trtops.release.documents import Channel

POINTERS = "channels/"
ROOTS = "roots/"
SECRETS = "secrets/"
SNAPSHOT = "snapshot"


def pointer(channel: Channel) -> str:
    """Name of a channel's pointer."""
    return f"{POINTERS}{channel.engine}/{channel.name}"


def bindings(channel: Channel) -> str:
    """Prefix of a channel's bindings."""
    return f"bindings/{channel.engine}/{channel.name}/"


def binding(channel: Channel, digest: Digest) -> str:
    """Name of one binding."""
    return bindings(channel) + _tail(digest)


def engine_release(engine: str, digest: Digest) -> str:
    """Name of an engine release."""
    return f"engines/{engine}/releases/{_tail(digest)}"


def config_release(engine: str, digest: Digest) -> str:
    """Name of a config release."""
    return f"configs/{engine}/{_tail(digest)}"


def provenance(digest: Digest) -> str:
    """Name of an artifact's provenance."""
    return f"provenance/{_tail(digest)}"


def evidence(digest: Digest) -> str:
    """Name of a record of evidence."""
    return f"evidence/{_tail(digest)}"


def verdict(digest: Digest) -> str:
    """Name of a verdict."""
    return f"verdicts/{_tail(digest)}"


def secrets(engine: str) -> str:
    """Prefix of an engine's sealed secrets."""
    return f"{SECRETS}{engine}/"


def secret(engine: str, path: str) -> str:
    """Name of a sealed secret."""
    return secrets(engine) + path


def approvals(engine: str, release: Digest) -> str:
    """Prefix of a release's approvals."""
    return f"approvals/{engine}/{_tail(release)}/"


def approval(engine: str, release: Digest, key_id: str) -> str:
    """Name of one key's approval."""
    return approvals(engine, release) + key_id


def root(version: int) -> str:
    """Name of a version of the root of trust."""
    return f"{ROOTS}{version}"


def _tail(digest: Digest) -> str:
    return f"{digest.algorithm}-{digest.value}"
