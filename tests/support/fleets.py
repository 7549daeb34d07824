"""Engines of the fake backend as files, for supervisors: what they play is in their sidecars."""

from __future__ import annotations

import json
import time
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.waiting import LONG, until
from trtops.backend.fake import FakeBackend, _Artifact
from trtops.backend.port import Sidecar
from trtops.digest import Digest
from trtops.errors import Retryable, TrtopsError, Unavailable
from trtops.executor.port import Opening, Tolerance
from trtops.executor.unit import Pace
from trtops.spec.engine import Batching, Memory, Target
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

    from trtops.executor.overview import UnitStatus
    from trtops.executor.remote import RemoteEngines
    from trtops.executor.supervisor import Supervisor

X = TensorInfo(name="x", dtype="float32", shape=("n", 4))
Y = TensorInfo(name="y", dtype="float32", shape=("n", 1))
ONES = {"x": np.ones((2, 4), np.float32)}
"""Answered with 4.0 twice."""
QUICK = Pace(linger=0.1, settle=None, silence=20.0, run=20.0)
STRICT = Tolerance(1e-6, 1e-6)


Sides = tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]


def opening(folder: Path, shadowing: Tolerance | None = None, sides: Sides = ((X,), (Y,)), **plays: Any) -> Opening:
    """An engine that adds up rows, and plays these options of the fake backend. ``sides``: its inputs and outputs."""
    backend = FakeBackend()
    path = folder / "engine.json"
    path.write_bytes(_Artifact(inputs=sides[0], outputs=sides[1], precision="fp32").canonical_bytes())
    digest = Digest.of_file(path)
    sidecar = Sidecar(
        backend="fake",
        backend_version="1.0.0",
        target=Target(backend="fake"),
        device=backend.device(),
        plan=digest,
        model=digest,
        artifact=digest,
        size_bytes=path.stat().st_size,
        inputs=sides[0],
        outputs=sides[1],
        profiles=(),
        format="application/vnd.trtops.fake+json",
        extra={"fake": json.dumps(plays)} if plays else {},
    )
    return Opening(path, sidecar, backend.load, shadowing)


def load(
    supervisor: Supervisor,
    folder: Path,
    generation: int,
    *,
    name: str = "e",
    channel: str = "stable",
    memory: Memory | None = None,
    shadowing: Tolerance | None = None,
    **plays: Any,
) -> None:
    """Load a generation and wait until it serves."""
    supervisor.load(
        name,
        generation=generation,
        version="1.0.0",
        digest=f"digest {generation}",
        backend="fake",
        batching=Batching.model_validate({"max_batch": 8, "queue": {"timeout": "20s"}}),
        instances=1,
        open_session=opening(folder, shadowing, **plays),
        memory=memory,
        channel=channel,
    )


class Callers:
    """Threads that ask in a loop, each request with a key, and count what they get."""

    def __init__(self, remote: RemoteEngines, *, name: str = "e", threads: int = 3, keys: int = 40) -> None:
        self._remote = remote
        self._name = name
        self._keys = keys
        self._stop = Event()
        self.answers: Counter[int] = Counter()
        self.errors: list[TrtopsError] = []
        self.slowest = 0.0
        self.by_key: dict[str, set[int]] = {}
        self.ended = [0] * threads
        self._threads = [Thread(target=self._loop, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LONG)

    def _loop(self, number: int) -> None:
        asked = 0
        while not self._stop.is_set():
            asked += 1
            key = f"{number}-{asked % self._keys}"
            began = time.monotonic()
            try:
                outcome = self._remote.infer(self._name, ONES, 2, key=key)
            except TrtopsError as error:
                self.errors.append(error)
                time.sleep(0.01)
            else:
                assert outcome.outputs["y"].tolist() == [[4.0], [4.0]]
                self.answers[outcome.generation] += 1
                self.by_key.setdefault(key, set()).add(outcome.generation)
                self.slowest = max(self.slowest, time.monotonic() - began)
            self.ended[number] += 1

    def more(self, number: int = 30, *, generation: int | None = None) -> None:
        """Wait for so many more answers."""
        before = self._number(generation)
        until(lambda: self._number(generation) >= before + number)

    def _number(self, generation: int | None) -> int:
        return sum(self.answers.values()) if generation is None else self.answers[generation]

    def settle(self) -> None:
        """Wait until each thread has begun and ended a request since."""
        before = list(self.ended)
        until(lambda: all(now >= then + 2 for now, then in zip(self.ended, before, strict=True)))

    def forget(self) -> None:
        """Count from here on."""
        self.answers.clear()
        self.errors.clear()
        self.by_key.clear()


def share(answers: Mapping[int, int], generation: int) -> float:
    return answers.get(generation, 0) / max(1, sum(answers.values()))


def unit(supervisor: Supervisor, name: str = "e", channel: str = "stable") -> UnitStatus:
    found = [one for one in supervisor.units() if (one.name, one.channel) == (name, channel)]
    return next((one for one in found if one.state != "draining"), found[0])


def pid(supervisor: Supervisor, name: str = "e", channel: str = "stable") -> int:
    number = unit(supervisor, name, channel).worker
    return next(worker.pid for worker in supervisor.workers() if worker.number == number)


def generation_by_key(remote: RemoteEngines, key: str) -> int:
    """The generation that answers a key; 0: it is told to come again."""
    try:
        return remote.infer("e", ONES, 2, key=key).generation
    except (Unavailable, Retryable):
        return 0
