"""What a supervisor keeps books of: units, workers, and the orders about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Sidecar
    from trtops.errors import TrtopsError
    from trtops.executor.port import EngineInfo, Tolerance
    from trtops.spec.engine import Batching, Execution, Memory, Profile

STABLE: Final = "stable"
UnitState = Literal["starting", "loading", "loaded", "ready", "waiting", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds, and numbers.

    Attributes:
        lead: from the announcement of a new worker to the move of the routes, so that clients are connected by then.
        linger: that a generation still takes requests after the routes moved on: clients may be in the middle of one.
        settle: that a stable engine has to serve well before it moves in with the others; None: it never does.
        memory_of_deaths: that a death counts.
        deaths: of a unit that is not stable, after which it is given up.
        load: that a load may take.
        start: that a worker may take until it takes orders.
        silence: without a sign of life, after which a worker is taken for dead.
        run: that a batch may be on a device, after which its worker is taken for hung.
    """

    lead: float = 0.05
    linger: float = 0.5
    settle: float | None = 30.0
    memory_of_deaths: float = 600.0
    deaths: int = 3
    load: float = 600.0
    start: float = 60.0
    silence: float = 5.0
    run: float = 10.0


@dataclass(frozen=True, slots=True)
class Charge:
    """What is to be loaded: the arguments of ``Engines.load``, with the artifact in place of an open session."""

    name: str
    channel: str
    generation: int
    version: str
    digest: str
    backend: str
    instances: int
    path: Path
    sidecar: Sidecar
    batching: Batching
    profiles: tuple[Profile, ...]
    memory: Memory | None
    execution: Execution | None
    tolerance: Tolerance | None = None


@dataclass(slots=True)
class Unit:
    """One generation of an engine on one device.

    Attributes:
        number: of this load; comes back with the worker's answer.
        load: the load that it belongs to, while that is under way.
        replaces: the unit that it takes the place of when it is loaded (a move to another worker).
        worker: that holds it; 0: none.
        since: when it came into its state.
        deaths: when its worker died, lately. ``restarts``: how often in all. ``fault``: the last one, in words.
        at: when it is loaded again (waiting), gets its requests (loaded), or is unloaded (draining).
        apart: it stays in a worker of its own.
        told: its worker was told to unload it.
    """

    number: int
    charge: Charge
    device: int
    worker: int
    state: UnitState
    since: float
    load: int | None = None
    replaces: int | None = None
    info: EngineInfo | None = None
    deaths: tuple[float, ...] = ()
    restarts: int = 0
    fault: str | None = None
    at: float = 0.0
    apart: bool = False
    told: bool = False

    @property
    def holder(self) -> str:
        """Its name in budgets."""
        return f"engine {self.charge.name}, generation {self.charge.generation} (load {self.number})"

    def __repr__(self) -> str:
        """Show what it is and how."""
        charge = self.charge
        place = f"worker {self.worker}" if self.worker else "no worker"
        fault = f", last fault: {self.fault}" if self.fault else ""
        return f"{charge.name}@{charge.generation}[{charge.channel}, {self.state}, {place}{fault}]"


@dataclass(slots=True)
class Worker:
    """A process. ``beat`` is when it last showed life; ``busy`` how long its oldest batch has run, by that sign."""

    number: int
    device: int
    started: float
    beat: float
    up: bool = False
    stopping: bool = False
    busy: float = 0.0
    busy_with: str = ""
    units: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start this worker."""

    worker: int
    device: int


@dataclass(frozen=True, slots=True)
class Load:
    """Tell a worker to load a unit."""

    worker: int
    unit: int


@dataclass(frozen=True, slots=True)
class Adjust:
    """Tell a worker of a unit's new generation and batching."""

    worker: int
    unit: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Tell a worker to serve an engine no more."""

    worker: int
    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell a worker to end."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker at once; its death is an event like any other."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Mirror:
    """Copy so many percent of an engine's requests from one worker to a unit of another; 0: no more."""

    worker: int
    name: str
    percent: int
    to: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Routes or catalogue changed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A load ended; ``error`` None: it serves."""

    load: int
    error: TrtopsError | None


Action = Spawn | Load | Adjust | Unload | Stop | Kill | Mirror | Publish | Finished
