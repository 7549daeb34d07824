"""One client, seen from the executor: its segment, its rings, what of it is in flight. Nothing it wrote is believed."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trtops.errors import InputError, Overloaded, TrtopsError
from trtops.transport.layout import (
    ANSWER,
    ANSWER_BYTES,
    ANSWER_OFFSET,
    MAX_DESCRIPTION,
    REQUEST,
    REQUEST_BYTES,
)
from trtops.transport.ring import Violation, reader, writer
from trtops.transport.tensors import Describer, Parser
from trtops.transport.wire import FORMATS, encode_error, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from trtops.transport.segment import Segment

log = logging.getLogger(__name__)

_read_request = REQUEST.unpack_from
_write_answer = ANSWER.pack_into


class Answer(Protocol):
    """What an executor says to a request; ``trtops.executor.port.Outcome`` is one."""

    @property
    def outputs(self) -> Mapping[str, NDArray[np.generic]]:
        """Name -> array; empty with an error."""

    @property
    def error(self) -> Exception | None:
        """Why there are no outputs."""

    @property
    def generation(self) -> int:
        """Of the engine."""

    @property
    def batch(self) -> int:
        """Rows that ran together."""

    @property
    def queue_us(self) -> float:
        """Microseconds in the queue."""

    @property
    def compute_us(self) -> float:
        """Microseconds that the batch ran."""


class Relief(Protocol):
    """Lets a thread work that should wait for clients."""

    def __call__(self, expected: float) -> bool:
        """Ask before the work, with the seconds that it is expected to take; False: nobody could take its place."""

    def begun(self) -> None:
        """The work is handed to the device: from now on the thread only waits, and somebody may take its place."""


class Handler(Protocol):
    """What the transport passes requests to."""

    def submit(
        self,
        engine: str,
        inputs: Mapping[str, NDArray[np.generic]],
        rows: int,
        deadline: float | None,
        priority: int,
        done: Callable[[Answer], None],
        client: str = "",
    ) -> Callable[[], None]:
        """Take a request, which may wait for :meth:`start`; ``done`` comes once, from any thread.

        ``client`` tells whose it is: clients are served in turn.

        Returns what cancels it.

        Raises:
            TrtopsError: it is refused; ``done`` does not come.
        """

    def start(self, *, relief: Relief | None = None) -> None:
        """All requests that were there are submitted: start them.

        Args:
            relief: this thread may be used for the work, if this says so: it sees to it that another thread takes the
                requests that come meanwhile.
        """

    def mapped(self, memory: NDArray[np.uint8]) -> None:
        """A client's segment was mapped; inputs will be views of it."""

    def catalogue(self) -> bytes:
        """The engines that are served, as JSON."""


class Connection:
    """A client that was welcomed.

    Attributes:
        name: for the log, and for whose turn it is: ``pid 12, uid 1000``.
        segment: shared with it.
    """

    def __init__(
        self,
        name: str,
        segment: Segment,
        bell: int,
        ring: Callable[[], object],
        handler: Handler,
        version: int,
        *,
        private: bool,
    ) -> None:
        """Begin with nothing in flight.

        Args:
            name: for the log.
            segment: shared with it.
            bell: the executor's end of the client's bell; closed with the connection.
            ring: rings it (see :func:`~trtops.transport.bells.clients_bell`).
            handler: gets the requests.
            version: of the messages. A client that knows memory formats tells those of its inputs, and gets outputs
                written as they lie.
            private: copy inputs before they are used, since the client may change them meanwhile.
        """
        self.name = name
        self.segment = segment
        self._bell = bell
        self._ring = ring
        self._submit = handler.submit
        self._private = private
        layout, formats = segment.layout, version >= FORMATS
        self._submitted = reader(segment.words, layout.submit, layout.entries)
        self._completed = writer(segment.words, layout.complete, layout.entries)
        self._parser = Parser(layout.input_bytes, formats=formats)
        self._describer = Describer(layout.output_bytes, "output area", lying=formats)
        self._cancels: dict[int, tuple[int, Callable[[], None] | None]] = {}
        self._described = [b""] * layout.slots
        self._engines = [""] * layout.slots
        self._lock = threading.Lock()
        self._open = True
        self._expecting = False
        self._submitted.announce_sleep()

    def __repr__(self) -> str:
        """Show what is in flight."""
        state = "" if self._open else ", closed"
        return f"Connection({self.name}, {self.in_flight} of {self.segment.layout.slots} slots in flight{state})"

    @property
    def in_flight(self) -> int:
        """Slots that the executor holds."""
        return len(self._cancels)

    def wake(self) -> None:
        """From now on somebody looks for requests again and again: the client need not ring until :meth:`rest`."""
        self._submitted.announce_awake()

    def take(self) -> int:
        """Take the requests that are in the ring. Returns how many.

        Raises:
            Violation: the client broke the protocol.
        """
        slots = self._submitted.pop()
        for slot in slots:
            self._take(slot)
        return len(slots)

    def rest(self) -> bool:
        """Nobody looks any more: ask for the doorbell. False: something came meanwhile, take it first.

        Where another thread looks (:meth:`expect`) nothing is asked for.
        """
        if self.attended:
            return True
        if self._submitted.announce_sleep():
            return True
        self._submitted.announce_awake()
        return False

    @property
    def attended(self) -> bool:
        """Whether the thread that gave the last answer looks for what comes next."""
        return self._expecting and not self._cancels

    def expect(self, *, more: bool) -> None:
        """Have the client not ring once it has all its answers, since who gives them looks for what it sends then.

        That has to end with ``more=False``, and then with :meth:`take` and :meth:`rest`, whatever came.
        """
        with self._lock:
            self._expecting = more

    def linger(self, seconds: float, clock: Callable[[], float]) -> bool:
        """Look for requests for a moment instead of sleeping. Afterwards they are taken, or :meth:`rest` is called.

        Returns:
            Whether there are some.
        """
        reader = self._submitted
        reader.announce_awake()
        end = clock() + seconds
        while not reader.pending():
            if clock() >= end or not self._open:
                return False
        return True

    def _take(self, slot: int) -> None:
        segment = self.segment
        starts, data, cancels = segment.starts, segment.bytes, self._cancels
        if slot >= len(starts):
            raise Violation(f"slot {slot} of {len(starts)}")
        begin = starts[slot]
        sequence, deadline, priority, size = _read_request(data, begin)
        if slot in cancels:
            raise Violation(f"slot {slot} was posted twice")
        cancels[slot] = (sequence, None)  # by this thread only, and close() as well: with no lock
        try:
            if size > MAX_DESCRIPTION:
                raise InputError(f"a description of {size} bytes")  # noqa: TRY301 - answered like every other
            begin += REQUEST_BYTES
            request = self._parser.parse(data[begin : begin + size])
            self._engines[slot] = request.engine
            inputs = request.views(slot, segment.inputs)
            if self._private:
                inputs = {name: array.copy("K") for name, array in inputs.items()}
            due = deadline / 1e9 if deadline else None
            done = partial(self.answer, slot, sequence)
            cancel = self._submit(request.engine, inputs, request.rows, due, priority, done, self.name)
        except Exception as error:  # whatever it is, the client gets an answer
            if not isinstance(error, TrtopsError):
                log.exception("a request of %s failed", self.name)
            self._refuse(slot, sequence, error)
            return
        if slot in cancels:
            with self._lock:
                if slot in cancels:  # not answered meanwhile; the next request in it is taken by this thread
                    cancels[slot] = (sequence, cancel)

    def cancel(self, slot: int, sequence: int) -> None:
        """Cancel a request, if it is still that one."""
        with self._lock:
            held, cancel = self._cancels.get(slot, (None, None))
        if held == sequence and cancel is not None:
            cancel()

    def answer(self, slot: int, sequence: int, answer: Answer) -> None:
        """Write an answer to its slot and give the slot back. Called by the executor's completion thread."""
        if answer.error is not None:
            self._refuse(slot, sequence, answer.error, answer)
            return
        try:
            described = self._describer.describe("", 0, answer.outputs)
        except InputError as error:
            self._refuse(slot, sequence, error, answer)
            return
        segment, outputs, encoded = self.segment, answer.outputs, described.encoded
        for name, view in described.views(slot, segment.outputs).items():
            view[...] = outputs[name]
        start = segment.starts[slot] + ANSWER_OFFSET
        if self._described[slot] is not encoded:  # else it stands there; a client that changed it harms itself
            segment.bytes[start + ANSWER_BYTES : start + ANSWER_BYTES + len(encoded)] = encoded
            self._described[slot] = encoded
        _write_answer(
            segment.bytes,
            start,
            sequence,
            0,
            len(encoded),
            answer.generation,
            answer.batch,
            0,
            answer.queue_us,
            answer.compute_us,
            0.0,
        )
        self._give_back(slot)

    def _refuse(self, slot: int, sequence: int, error: Exception, answer: Answer | None = None) -> None:
        segment = self.segment
        text = encode_error(error, segment.layout.output_bytes)
        segment.outputs[slot][: len(text)] = np.frombuffer(text, np.uint8)
        _write_answer(
            segment.bytes,
            segment.starts[slot] + ANSWER_OFFSET,
            sequence,
            status_of(error),
            len(text),
            answer.generation if answer else 0,
            answer.batch if answer else 0,
            self._credit(slot) if isinstance(error, Overloaded) else 0,
            answer.queue_us if answer else 0.0,
            answer.compute_us if answer else 0.0,
            float(getattr(error, "retry_after", 0.0)),
        )
        self._give_back(slot)

    def _credit(self, slot: int) -> int:
        """What the client may have in flight of the engine that refuses this slot: as much as it has, one at least."""
        engine = self._engines[slot]
        return max(1, sum(self._engines[other] == engine for other in list(self._cancels)) - 1)

    def _give_back(self, slot: int) -> None:
        with self._lock:
            self._cancels.pop(slot, None)
            if not self._open:
                return
            if self._expecting and not self._cancels:
                self._submitted.announce_awake()
            if self._completed.push(slot):
                try:  # noqa: SIM105 - as often as answers are given; contextlib.suppress takes as long as the call
                    self._ring()
                except OSError:  # of an older version: it is rung already, or gone
                    pass

    def close(self) -> int:
        """Let go of the client: cancel what waits; what runs is answered to nobody. Returns what was in flight."""
        with self._lock:
            if not self._open:
                return 0
            self._open = False
            cancels = [cancel for _, cancel in self._cancels.values() if cancel is not None]
            number = len(self._cancels)
            os.close(self._bell)
        for cancel in cancels:
            cancel()
        return number
