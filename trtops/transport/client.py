"""The Python client of an executor in another process.

A client has slots: pieces of memory that it shares with the executor. A request is written to a slot once and read
there by the executor; so is the answer. A client may be used by many threads; it must not be used after a fork.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from socket import MSG_DONTWAIT, SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError, Overloaded, Retryable, TrtopsError, Unavailable
from trtops.transport.answers import Answers
from trtops.transport.call import Call, Reply
from trtops.transport.catalogue import engines_of, receive
from trtops.transport.credit import Credit
from trtops.transport.formats import formats_of
from trtops.transport.greeting import connect, greet
from trtops.transport.layout import REQUEST, REQUEST_BYTES
from trtops.transport.ring import reader, writer
from trtops.transport.tensors import Describer
from trtops.transport.wire import (
    Ask,
    Catalogue,
    FromExecutor,
    Refused,
    Withdraw,
    decode_from_executor,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    Arrays = Mapping[str, NDArray[np.generic]]

_write_request = REQUEST.pack_into


class Client:
    """A connection to an executor. Close it, or use it as a context manager.

    Attributes:
        defer: rings the executor's doorbell later, once for all requests until then; None: each rings at once.
        learn: takes engine -> input -> memory format: how inputs are written from now on. Catalogues tell it, too.
    """

    def __init__(
        self,
        path: Path | str | socket,
        *,
        slots: int = 16,
        input_bytes: int = 1 << 20,
        output_bytes: int = 1 << 16,
        timeout: float = 5.0,
        spin: float = 0.0,
        copy: bool = True,
        worker: int | None = None,
    ) -> None:
        """Connect.

        Args:
            path: of the executor's socket; or a socket that is connected to one, which is this object's from now on.
            slots: requests that may be in flight.
            input_bytes: bytes of all inputs of a request at most.
            output_bytes: bytes of all outputs at most.
            timeout: seconds to wait for the executor's welcome and other answers off the data path.
            spin: seconds to look for an answer before sleeping; burns a core, so only for a lone client.
            copy: outputs are copies; else they are views of the slot, which is free again when the last view is gone.
            worker: which worker of a supervisor, by the number in its page of routes; None: any, or an executor's own.

        Raises:
            Unavailable: no executor listens there, it refuses this user, or is full.
            InputError: it does not grant these slots, or speaks another version.
        """
        self._spin = spin
        self._timeout = timeout
        if isinstance(path, socket):
            path.settimeout(timeout)
            self._socket = path
        else:
            self._socket = connect(Path(path), timeout)
        try:
            greeted = greet(self._socket, slots, input_bytes, output_bytes, worker)
        except BaseException:
            self._socket.close()
            raise
        self._segment, self._their_bell, self._bell, formats = greeted
        layout = self._segment.layout
        self._submit = writer(self._segment.words, layout.submit, layout.entries)
        self._complete = reader(self._segment.words, layout.complete, layout.entries)
        self._describer = Describer(layout.input_bytes, "input area", formats=formats)
        self.learn = self._describer.learn
        self._described = [b""] * slots
        self._free = deque(range(slots))
        self._answers = Answers(self._segment, self._free.append, copy=copy, formats=formats is not None)
        self._calls: dict[int, Call] = {}
        self._followers: deque[Call] = deque()
        self._sequences = itertools.count(1)
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._asking = threading.Lock()
        self._asked: dict[int, Call] = {}
        self._credit = Credit()
        self._gone: Exception | None = None
        self._attended = False
        self.defer: Callable[[Callable[[], None]], object] | None = None
        self._ring_due = False
        self._poller = select.epoll()
        self._poller.register(self._bell, select.EPOLLIN | select.EPOLLET)  # each ring is an event; nothing to read
        self._poller.register(self._socket, select.EPOLLIN)
        self._complete.announce_sleep()

    def __enter__(self) -> Self:
        """Use it in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Show the slots."""
        gone = f", gone: {self._gone}" if self._gone is not None else ""
        return (
            f"Client({len(self._calls)} in flight, {len(self._free)} of {self._segment.layout.slots} slots free{gone})"
        )

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        engine: str,
        inputs: Arrays,
        rows: int,
        *,
        deadline: float | None = None,
        priority: int = 0,
        done: Callable[[Reply], None] | None = None,
    ) -> Call:
        """Send a request. The inputs are copied into a slot; they may change afterwards.

        Args:
            engine: its name.
            inputs: name -> array whose first axis is rows.
            rows: rows of every input.
            deadline: ``time.monotonic()`` seconds by which an answer is due.
            priority: 0 is the most urgent.
            done: is called with the answer by whichever thread polls.

        Returns:
            The call, for :meth:`wait` and :meth:`cancel`.

        Raises:
            InputError: the inputs do not fit in a slot, or their types do not travel.
            Overloaded: all slots are in use, or as many of an overloaded engine as may be.
            Unavailable: the connection is gone.
        """
        if not 0 <= priority < 1 << 32:
            raise InputError(f"priority {priority}: 0 is the most urgent")
        call, views = self.reserve(engine, inputs, rows, done=done)
        for name, view in views.items():
            view[...] = inputs[name]
        self.send(call, deadline=deadline, priority=priority)
        return call

    def reserve(
        self, engine: str, like: Arrays, rows: int, *, done: Callable[[Reply], None] | None = None
    ) -> tuple[Call, dict[str, NDArray[np.generic]]]:
        """Take a slot whose inputs the caller writes itself, with no copy, before it calls :meth:`send`.

        Args:
            engine: its name.
            like: name -> array of the shape and type to come (``numpy.empty`` will do).
            rows: rows of every input.
            done: as for :meth:`submit`.

        Returns:
            The call, and name -> array in the slot, 64-byte aligned, lying in the engine's format where it fits.

        Raises:
            InputError: they do not fit in a slot, or their types do not travel.
            Overloaded: all slots are in use, or as many of an overloaded engine as may be.
            Unavailable: the connection is gone.
        """
        described = self._describer.describe(engine, rows, like)
        if self._gone is not None:
            raise self._no_more()
        if self._credit.told:
            self._credit.check(engine, list(self._calls.values()))
        try:
            slot = self._free.popleft()
        except IndexError:
            what = f"all {self._segment.layout.slots} slots are in use"
            raise Overloaded(what, fix="wait for answers, or ask for more slots") from None
        call = Call(slot, next(self._sequences), done, engine)
        encoded = described.encoded
        segment = self._segment
        if self._described[slot] is not encoded:  # else it stands there: the executor does not write to it
            begin = segment.starts[slot] + REQUEST_BYTES
            segment.bytes[begin : begin + len(encoded)] = encoded
            self._described[slot] = encoded
            described.fill(segment.inputs[slot])
        call.size = len(encoded)
        return call, described.views(slot, segment.inputs)

    def _no_more(self) -> Unavailable:
        return Unavailable(f"the connection is gone: {self._gone}", fix="connect again")

    def send(self, call: Call, *, deadline: float | None = None, priority: int = 0) -> None:
        """Send a request whose slot was reserved and written.

        Raises:
            Unavailable: the connection is gone.
        """
        due = 0 if deadline is None else max(1, int(deadline * 1e9))
        segment, slot = self._segment, call.slot
        _write_request(segment.bytes, segment.starts[slot], call.sequence, due, priority, call.size)
        with self._lock:
            if self._gone is not None:
                raise self._no_more()
            self._calls[slot] = call
            ring = self._submit.push(slot)
        if ring:
            if self.defer is None:
                self._ring()
            elif not self._ring_due:
                self._ring_due = True
                self.defer(self._ring)

    def _ring(self) -> None:
        self._ring_due = False
        try:  # noqa: SIM105 - as often as requests are sent; contextlib.suppress takes as long as the call
            os.eventfd_write(self._their_bell, 1)
        except OSError:  # its counter is full: it is rung; or another thread hung up
            pass

    def abandon(self, call: Call) -> None:
        """Free a slot that was reserved and will not be sent."""
        if self._calls.get(call.slot) is not call:
            self._free.append(call.slot)

    def cancel(self, call: Call) -> None:
        """Ask to cancel a request; an answer still comes. Nothing happens if it was answered."""
        if call.reply is None:
            self._say(encode(Withdraw(call.slot, call.sequence)))

    def infer(
        self, engine: str, inputs: Arrays, rows: int, *, deadline: float | None = None, priority: int = 0
    ) -> Reply:
        """Send a request and wait for its answer, which carries no error.

        Raises:
            TrtopsError: whatever the answer says.
        """
        reply = self.wait(self.submit(engine, inputs, rows, deadline=deadline, priority=priority))
        if reply.error is not None:
            raise reply.error
        return reply

    def wait(self, call: Call) -> Reply:
        """Wait for the answer to a request. One of the threads that wait polls for all of them."""
        while call.reply is None:
            if self._polling.acquire(blocking=False):
                try:
                    while call.reply is None:
                        self._poll(None)
                finally:
                    self._polling.release()
                    if self._attended:
                        self.attend()
                    if self._followers:  # one that comes later sees that nobody polls
                        self._promote()
            else:
                self._follow(call)
        return call.reply

    def _follow(self, call: Call, timeout: float | None = None) -> None:
        """Sleep until the call is answered, or until it is this thread's turn to poll."""
        event = call.event = threading.Event()
        if call.reply is not None:  # looked at after the event is there for who answers: see _answer
            return
        with self._lock:
            self._followers.append(call)
        if not self._polling.locked():
            self._promote()  # the one who polled left before it could see this call
        event.wait(timeout)

    def _promote(self) -> None:
        """Wake a thread that still waits, so that it polls."""
        with self._lock:
            while self._followers:
                follower = self._followers.popleft()
                if follower.reply is None and follower.event is not None:
                    follower.event.set()
                    return

    def poll(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds (None: for ever) for answers and call their ``done``. False: none came.

        Raises:
            Unavailable: the connection is gone, and every call was answered with an error.
        """
        with self._polling:
            came = self._poll(timeout)
        self._promote()
        if self._gone is not None:
            raise self._no_more()
        return came

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`attend` has something to do, for an event loop to watch."""
        return self._poller.fileno()

    def attend(self) -> None:
        """Take the answers that are there, call their ``done``, and never wait: for a thread that has an event loop.

        From the first call on the doorbell is always asked for, so that :meth:`fileno` tells of the next answer.

        Raises:
            Unavailable: the connection is gone, and every call was answered with an error.
        """
        self._attended = True
        complete = self._complete
        with self._polling:
            while True:
                for fd, _ in self._poller.poll(0, 2):
                    if fd != self._bell:
                        self._listen()
                complete.announce_awake()
                self._take()
                if self._gone is not None:
                    raise self._no_more()
                if complete.announce_sleep():
                    return

    def _poll(self, timeout: float | None) -> bool:
        if self._take():
            return True
        if self._gone is not None:
            return True
        complete = self._complete
        if self._spin:
            until = time.perf_counter() + self._spin
            while time.perf_counter() < until:
                if complete.pending():
                    return self._take()
        if complete.announce_sleep():
            for fd, _ in self._poller.poll(timeout, 2):
                if fd != self._bell:
                    self._listen()
        complete.announce_awake()
        return self._take()

    def _take(self) -> bool:
        """Take the answers that are there."""
        numbers = self._complete.pop()
        for slot in numbers:
            call = self._calls.pop(slot, None)
            if call is not None:
                reply = self._answers.read(call)
                if reply.credit or self._credit.told:
                    self._credit.note(call, reply)
                self._answer(call, reply)
        return bool(numbers)

    def _answer(self, call: Call, reply: Reply) -> None:
        call.reply = reply  # before it looks for the event: a thread that is about to sleep goes the other way round
        if call.event is not None:
            call.event.set()
        if call.done is not None:
            call.done(reply)

    def _listen(self) -> None:
        """The socket has something: an answer off the data path, or its end."""
        try:
            packet, fds = receive(self._socket, MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return  # a reset is reported once, before what the executor said last
        except OSError as error:
            self._lose(Retryable(f"the executor's socket failed: {error}"))
            return
        if not packet:
            self._lose(Retryable("the executor went away", fix="connect again and send the request again"))
            return
        try:
            self._heard(decode_from_executor(packet), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _heard(self, message: FromExecutor, fds: list[int]) -> None:
        if isinstance(message, Refused):
            self._lose(Unavailable(f"the executor hung up: {message.what}"))
        elif isinstance(message, Catalogue):
            call = self._asked.pop(message.number, None)
            if call is not None:
                reply = Reply()
                try:
                    reply.document = engines_of(message, fds)
                    self.learn(formats_of(reply.document))
                except (InputError, Unavailable) as error:
                    reply.error = error
                self._answer(call, reply)

    def _lose(self, why: TrtopsError) -> None:
        """The connection is gone: every call gets an error."""
        with self._lock:
            if self._gone is None:
                self._gone = why
            calls = [*self._calls.values(), *self._asked.values()]
            self._calls.clear()
            self._asked.clear()
            with contextlib.suppress(OSError):  # it was done before
                self._socket.shutdown(SHUT_RDWR)  # wakes the thread that polls
        for call in calls:
            self._answer(call, Reply(error=why))

    # -- off the data path ---------------------------------------------------------------------------------------------

    def catalogue(self) -> Any:  # noqa: ANN401 - JSON of the handler
        """Ask which engines are served. Threads that ask at once do so one after the other.

        Raises:
            Unavailable: the connection is gone, there is no answer in time, or the executor cannot give one now.
        """
        until = time.monotonic() + self._timeout
        if not self._asking.acquire(timeout=self._timeout):
            raise self._no_answer()
        try:
            with self._lock:
                if self._gone is not None:
                    raise self._no_more()
                number = next(self._sequences)
                call = self._asked[number] = Call(-1, number, None)
            self._say(encode(Ask(number)))
            self._wait_until(call, until)
            self._asked.pop(number, None)  # a late answer is dropped
        finally:
            self._asking.release()
        reply = call.reply
        if reply is None:
            raise self._no_answer()
        if reply.error is not None:
            raise reply.error
        return reply.document

    def _no_answer(self) -> Unavailable:
        what = f"the executor did not tell its engines within {self._timeout:g} s"
        return Unavailable(what, fix="look whether it is stopped or overloaded, and ask again")

    def _say(self, packet: bytes) -> None:
        """Send a message and never wait: where it cannot be sent, the executor has not read many before it."""
        with contextlib.suppress(OSError):  # gone: who polls finds out
            os.write(self._socket.fileno(), packet)  # of a socket with a timeout, whose file never blocks

    def _wait_until(self, call: Call, until: float) -> None:
        """Wait for an answer off the data path, or until a time: poll, or sleep as long as another thread does."""
        while call.reply is None and (left := until - time.monotonic()) > 0:
            if self._polling.acquire(blocking=False):
                try:
                    self._poll(left)
                finally:
                    self._polling.release()
                    if self._attended:
                        self.attend()
            else:
                self._follow(call, left)
        with self._lock, contextlib.suppress(ValueError):
            self._followers.remove(call)
        self._promote()  # it may have been this thread's turn

    def close(self) -> None:
        """Hang up. Calls in flight get an error; outputs that are lent stay readable. Idempotent.

        Must not be called from a ``done``: the thread that polls would wait for itself.
        """
        self._lose(Unavailable("the client was closed"))
        with self._lock:
            if self._bell < 0:
                return
        with self._polling, self._lock:
            bells, self._bell, self._their_bell = (self._bell, self._their_bell), -1, -1
            self._socket.close()
            self._poller.close()
            for fd in bells:
                if fd >= 0:
                    os.close(fd)
