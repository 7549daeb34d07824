"""What an agent has to serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.release.root import Root
    from trtops.release.sealing import Identity


@dataclass(frozen=True)
class Duty:
    """What an agent has to serve.

    Attributes:
        environment: whose channels.
        engines: names.
        channel: of each.
        root: the trusted keys.
        poll: seconds between two looks at a pointer when no watch calls.
        grace: seconds that a missing or expired pointer is borne before health says degraded.
        identity: opens the secrets of the runtime configs, in memory; None: they stay references.
        accepts: engine -> version of the interface that this service's clients were written against; a release with
            another major, or an older version, is not loaded. An engine that is not listed is taken in any version.
    """

    environment: str
    engines: tuple[str, ...]
    root: Root
    channel: str = "stable"
    poll: float = 15.0
    grace: float = 300.0
    identity: Identity | None = None
    accepts: Mapping[str, str] = field(default_factory=dict)
