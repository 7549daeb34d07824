"""What crosses the executor's border: a request going in, its outcome coming out.

Structs of msgspec, not dataclasses nor pydantic: these are made once a request, and cost a seventh so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtops.digest import Digest
from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.backend.port import Session, Sidecar
    from trtops.spec.engine import Batching, Execution, Memory, Profile
    from trtops.tensor import TensorInfo


class Request(msgspec.Struct, eq=False):
    """One inference.

    Attributes:
        inputs: name -> array whose first axis is rows.
        rows: rows of every input.
        deadline: monotonic seconds by which an answer is due; None: the queue's timeout of the spec counts.
        priority: 0 is the most urgent.
        key: routing key for channels (sticky); empty: none.
        client: who sends it; clients are served in turn, whatever each of them has waiting.
    """

    inputs: Mapping[str, NDArray[np.generic]]
    rows: int
    deadline: float | None = None
    priority: int = 0
    key: str = ""
    client: str = ""


class Outcome(msgspec.Struct, eq=False):
    """The answer to a request: outputs or an error, never both.

    Attributes:
        outputs: name -> array; views that stay valid as long as they are referenced.
        error: a TrtopsError, or None.
        generation: of the engine that answered.
        batch: rows of the batch that it ran in.
        queue_us, compute_us: microseconds it waited and its batch ran.
        channel: that the request went to.
    """

    outputs: Mapping[str, NDArray[np.generic]] = msgspec.field(default_factory=dict)
    error: Exception | None = None
    generation: int = 0
    batch: int = 0
    queue_us: float = 0.0
    compute_us: float = 0.0
    channel: str = "stable"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is serving under a name."""

    name: str
    generation: int
    version: str
    digest: str
    backend: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    max_batch: int


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens a session of an artifact: here, or in another process that gets the path and the sidecar.

    Attributes:
        path: of the artifact.
        sidecar: what is known of it, its digest included.
        load: of the backend that the sidecar names.
        shadowing: how its outputs are compared with those of the engine that it shadows.
        verified: what :func:`stamp_of` said of the file when this process verified its bytes; None: it did not.
    """

    path: Path
    sidecar: Sidecar
    load: Callable[[Path, Sidecar], Session]
    shadowing: Tolerance | None = None
    verified: tuple[int, ...] | None = None

    def __call__(self) -> Session:
        """Load it in this process.

        Raises:
            NotLoadable: the backend refuses it, or the file's bytes are not those of the sidecar.
        """
        try:
            # Loading an engine runs its code, and a worker that starts again loads it long after it was verified.
            same = stamp_of(self.path) == self.verified or Digest.of_file(self.path) == self.sidecar.artifact
        except OSError as error:
            raise NotLoadable(f"the engine cannot be read: {error.strerror}", where=str(self.path)) from error
        if not same:
            what = f"the file was changed: its bytes are not those of {self.sidecar.artifact.short}"
            raise NotLoadable(what, where=str(self.path), fix="look who can write there, then build or fetch it again")
        return self.load(self.path, self.sidecar)


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does: device, inode, size, times of content and of metadata.

    Raises:
        OSError: there is no such file.
    """
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """When two outputs are taken for the same: ``|actual - expected| <= atol + rtol * |expected|``, and metrics.

    Attributes:
        atol, rtol: of an element.
        bounds: metric (``top1``, ``top5``, ``cosine``) -> the least that it has to be.
    """

    atol: float
    rtol: float
    bounds: Mapping[str, float] = field(default_factory=dict)


class Relief(Protocol):
    """Lets a thread work that should wait for clients."""

    def __call__(self, expected: float) -> bool:
        """Ask before the work, with the seconds that it is expected to take; False: nobody could take its place."""

    def begun(self) -> None:
        """The work is handed to the device: from now on the thread only waits, and somebody may take its place."""


@runtime_checkable
class Offers(Protocol):
    """An executor in this process that takes several requests before it starts them."""

    def offer(
        self, engine: str, request: Request, done: Callable[[Outcome], None], *, spare: float = math.inf
    ) -> Callable[[], None]:
        """Queue a request as :meth:`Engines.submit` does, and leave it there until :meth:`start`, which has to follow.

        Where a batch of the engine took longer than ``spare`` seconds of late, it need not wait for that.

        Raises:
            TrtopsError: as :meth:`Engines.submit`.
        """

    def start(self, *, relief: Relief | None = None, spare: float = 0.0) -> None:
        """Start what was offered.

        With ``relief`` a batch may be run in this thread, which would only wait for more, if it allows it. With
        ``spare`` seconds this thread may run batches that take no longer, by those of their shape and rows that ran
        and by what the engine took of late; both: those that follow the first one.
        """


class Loader(Protocol):
    """What an agent needs of an executor, or of a supervisor of many."""

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now."""

    def load(  # noqa: PLR0913 - what a release says of an engine, each by its name
        self,
        name: str,
        *,
        generation: int,
        version: str,
        digest: str,
        backend: str,
        batching: Batching,
        instances: int,
        open_session: Callable[[], Session],
        profiles: tuple[Profile, ...] = (),
        memory: Memory | None = None,
        execution: Execution | None = None,
    ) -> None:
        """Load beside what serves, warm up, then flip the route; the old generation drains and is freed.

        Blocks until the new generation serves. A failure leaves the old one serving. ``profiles`` (of the engine's
        sidecar) bound the shapes that requests may have and are warmed up; ``memory`` sets the sizes of its pools;
        ``execution`` asks for streams and CUDA graphs, where the backend has such (its ``instances`` do not count).

        Raises:
            NotLoadable: it could not be loaded or warmed up; says why.
        """

    def adjust(self, name: str, *, generation: int, batching: Batching) -> bool:
        """Serve a generation that differs from what serves in its batching only, without a load.

        False: nothing was changed, and it has to be loaded: sizes or padding differ, or the engine does not serve.
        """

    def unload(self, name: str) -> None:
        """Take an engine out: requests in the queue finish, new ones are refused."""

    def close(self, *, drain: float) -> None:
        """Stop: requests in flight get ``drain`` seconds to finish, then an error."""


class Engines(Loader, Protocol):
    """What front ends need of an executor in this process."""

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Queue a request. ``done`` is called exactly once, from the executor's completion thread, in batches.

        Returns a function that cancels the request (idempotent; ``done`` still comes, with an error if it was in time).

        Raises:
            InputError: unknown engine, tensor, dtype or shape: names the tensor, what was expected, what came.
            Overloaded: the queue is full.
            Unavailable: the engine failed and could not be reloaded, or the executor is closing.
        """


@runtime_checkable
class Channels(Protocol):
    """Engines that can be loaded in channels beside the stable one: a supervisor's."""

    def load(  # noqa: PLR0913 - the same as of Engines, and where
        self,
        name: str,
        *,
        generation: int,
        version: str,
        digest: str,
        backend: str,
        batching: Batching,
        instances: int,
        open_session: Callable[[], Session],
        profiles: tuple[Profile, ...] = (),
        memory: Memory | None = None,
        execution: Execution | None = None,
        channel: str = "stable",
    ) -> None:
        """Load as :meth:`Engines.load` does, in a channel; a candidate answers nobody until :meth:`share` says so.

        Raises:
            NotLoadable: it could not be loaded or warmed up; says why.
        """

    def unload(self, name: str, channel: str | None = None) -> None:
        """Take an engine out of a channel; None: out of all.

        Raises:
            InputError: it is not there.
        """

    def share(self, name: str, weights: Mapping[str, int], shadows: Mapping[str, int] | None = None) -> None:
        """Set percent of the requests that each channel answers, and percent that are copied to each."""

    def promote(self, name: str, channel: str) -> None:
        """Let what serves in a channel be stable, where it is.

        Raises:
            InputError: nothing serves there.
        """

    def ailing(self) -> Mapping[tuple[str, str], str]:
        """Engine and channel -> why it does not serve just now. Empty when all do."""
