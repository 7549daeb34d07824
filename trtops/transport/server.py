"""The executor's end of the transport: threads that listen on a Unix socket and serve clients' slots.

The socket's file permissions and the peer's user and groups decide who may connect. A client of another user gets its
inputs copied before they are used (it could change them under the engine). Each client's memory is bounded, as is the
number of clients.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import logging
import os
import select
import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from trtops.errors import InputError, StorageError, TrtopsError, Unavailable
from trtops.transport.bells import clients_bell, executors_bell
from trtops.transport.catalogue import Listing
from trtops.transport.connection import Connection, Handler
from trtops.transport.crew import Crew, Turn
from trtops.transport.limits import Limits, agree
from trtops.transport.listening import Spare, listen
from trtops.transport.parting import hang_up, take
from trtops.transport.peers import Holding, Patience, Peer, holding
from trtops.transport.ring import Violation
from trtops.transport.segment import create
from trtops.transport.wire import (
    NO_ROUTES,
    PROBLEMS,
    Ask,
    Catalogue,
    Hello,
    Lookup,
    Problem,
    Refused,
    Withdraw,
    agreed,
    decode_from_client,
    encode,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.transport.layout import Layout
    from trtops.transport.wire import FromClient

log = logging.getLogger(__name__)

_GREETING: Final = 5.0
"""Seconds that a client has to say hello."""

_THREADS: Final = 2
_MANY_CORES: Final = 8
_EVENTS: Final = 64
_ROUNDS: Final = 4
"""Times that clients which are awake are looked at before others are listened to."""
_TURNS: Final = 32
"""The same of a lone client, as long as nobody else listens: whoever came meanwhile is let in afterwards."""
_BATCH: Final = 1.0
"""Seconds that the end of a server waits for a batch that one of its threads runs."""


class Server:
    """Serves clients on a Unix socket until :meth:`close`."""

    def __init__(
        self,
        path: Path | str | None,
        handler: Handler,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        linger: float | None = None,
    ) -> None:
        """Listen, and start two threads: while one runs a batch for a client, the other one listens.

        Args:
            path: of the socket; a stale one is replaced. None: clients come by :meth:`adopt` only.
            handler: gets the requests.
            limits: what clients may have.
            clock: monotonic seconds.
            linger: seconds to look for the next request of a lone client before sleeping, as long as that pays and
                there is more than one core; 0: never. None: 100 us, and 300 us with so many cores that one is idle,
                since a client may take as long to wake up there.

        Raises:
            Unavailable: another server listens there.
            StorageError: the socket cannot be made.
        """
        self.path = Path(path) if path is not None else None
        self._handler = handler
        self._limits = limits or Limits()
        self._clock = clock
        self._peers: dict[int, Peer] = {}
        self._bells: dict[int, Peer] = {}
        self._strangers: set[Peer] = set()
        self._adopted: SimpleQueue[socket.socket] = SimpleQueue()
        self._ending = False
        self._socket = listen(self.path, self._limits.mode) if self.path is not None else None
        self._spare = Spare()
        self._listing = Listing(b"[]")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        if self._socket is not None:
            self._epoll.register(self._socket, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._doors = {self._wake, -1 if self._socket is None else self._socket.fileno()}
        self._serving = threading.Lock()
        self._staying = threading.Lock()
        self._crew = Crew(clock)
        self._linger = _linger(linger, len(os.sched_getaffinity(0)))
        self._patience = Patience()
        self._awake: dict[Peer, None] = {}
        self._came = False
        self._rounds = 0
        self._ended = threading.Event()
        self._left = _THREADS
        self._threads = [
            threading.Thread(target=self._loop, name=f"trtops-transport-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        """Show clients and slots in use."""
        held = self.held()
        return f"Server({self.path}: {held.clients} clients, {held.in_use} slots in use)"

    @property
    def clients(self) -> int:
        """Clients that are connected."""
        return len(self._peers)

    def held(self) -> Holding:
        """What clients have. Any thread may ask."""
        return holding(tuple(self._peers.values()))

    def adopt(self, sock: socket.socket) -> None:
        """Serve a client that another process accepted and let in, whose hello has not been read.

        The socket is this object's from now on.
        """
        self._adopted.put(sock)
        with contextlib.suppress(OSError):  # closed meanwhile: so is the socket, with the queue
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop listening and hang up on every client. Waits a second for a batch that a thread runs. Idempotent."""
        if self._ended.is_set():
            return
        self._ending = True
        os.eventfd_write(self._wake, 1)
        self._ended.wait()
        for thread in self._threads:
            thread.join(_BATCH)

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Lead: wait for events, serve them, and start what was submitted, as long as nobody takes the lead."""
        turn = Turn(self._crew)
        try:
            while True:
                self._crew.stand_by()
                while not turn.lost:
                    if self._ended.is_set() or not self._listen(turn):
                        return
                turn.lost = False
        except Exception:
            log.exception("the transport's thread failed")
        finally:
            with self._serving:
                self._end()
            self._crew.leave()

    def _listen(self, turn: Turn) -> bool:
        """Take what clients that are awake sent, else wait for events and serve them. False: the server is to end.

        As long as some of them send, others have to ring, and are listened to every few rounds.
        """
        with self._serving:
            came = self._look()
            self._rounds = self._rounds + 1 if came else 0
            settled = not came and self._rest()
        if not came or self._rounds >= _ROUNDS:
            self._rounds = 0
            events = self._epoll.poll(self._timeout() if settled else 0, _EVENTS)
            with self._serving:
                self._came = came
                if not self._handle(events):
                    return False
                came = self._came
        if came:
            self._start(turn)
        return True

    def _look(self) -> bool:
        """Take what clients that are awake sent. False: nothing."""
        came = False
        for peer in tuple(self._awake):
            if peer.connection is not None and not peer.connection.attended:
                came = self._guarded(peer, self._take) or came
        return came

    def _rest(self) -> bool:
        """Nobody sends any more: let all of them ring again. False: something came meanwhile."""
        for peer in tuple(self._awake):
            if peer.connection is not None and not peer.connection.rest():
                return False
            self._awake.pop(peer, None)
        return True

    def _start(self, turn: Turn) -> None:
        """Start what was submitted, and stay with a lone client as long as that pays, whoever leads meanwhile."""
        mine = self._staying.acquire(blocking=False)
        try:
            for number in itertools.count():
                lone = self._lone() if mine and (turn.lost or number < _TURNS) else None
                if lone is not None and lone.connection is not None:
                    lone.connection.expect(more=True)
                self._handler.start(relief=turn)
                turn.end()
                if lone is None or not self._stay(lone, turn):
                    return
        finally:
            if mine:
                self._staying.release()

    def _handle(self, events: list[tuple[int, int]]) -> bool:
        """Serve what epoll reported. False: the server is to end."""
        knocked = False
        for fd, _ in events:
            if fd in self._doors:
                knocked = True
            else:
                self._serve(fd)
        if knocked:  # last: a new client may get the number of a descriptor that was closed just now
            self._accept(self._socket)
            self._take_adopted()
            if self._ending:  # asked after the bell was read, which may have been rung for this
                return False
        if self._strangers:
            self._hang_up_on_the_silent()
        return True

    def _lone(self) -> Peer | None:
        """The only client, if it pays to look a moment longer for its next request."""
        if not self._linger or len(self._bells) != 1:
            return None
        peer = next(iter(self._bells.values()), None)
        return peer if peer is not None and peer.connection is not None and self._patience.worth() else None

    def _stay(self, peer: Peer, turn: Turn) -> bool:
        """Look a moment longer for requests of a lone client, before it has to ring. True: some are submitted."""
        connection = peer.connection
        if connection is None:
            return False
        came = not connection.in_flight and connection.linger(self._linger, self._clock)
        self._patience.note(came=came)
        with self._serving:
            connection.expect(more=False)
            if self._bells.get(peer.bell) is not peer:
                return False
            came = self._guarded(peer, self._take)
            while (
                (turn.lost or peer not in self._awake)  # who leads may sleep, or does not look at this one
                and self._bells.get(peer.bell) is peer  # else it broke the protocol just now
                and not connection.rest()
            ):
                came = self._guarded(peer, self._take) or came
            return came

    def _timeout(self) -> float:
        if not self._strangers:
            return -1
        with self._serving:
            waiting = [peer.deadline for peer in self._strangers]
        return max(0.0, min(waiting, default=0.0) - self._clock())

    def _hang_up_on_the_silent(self) -> None:
        now = self._clock()
        for peer in [peer for peer in self._strangers if peer.deadline <= now]:
            self._drop(peer, "it did not say hello in time")

    def _end(self) -> None:
        """A thread ends: the first one hangs up on everybody, the last one closes what both used."""
        if not self._ended.is_set():
            self._ended.set()
            for peer in list(self._peers.values()):
                self._drop(peer, "the executor stops", quiet=True)
            if self._socket is not None and self.path is not None:
                with contextlib.suppress(OSError):
                    self.path.unlink()
                self._socket.close()
            os.eventfd_write(self._wake, 1)  # for the other one
        self._left -= 1
        if not self._left:
            self._epoll.close()
            os.close(self._wake)
            self._spare.close()
            self._listing.close()

    def _serve(self, fd: int) -> None:
        peer = self._bells.get(fd) or self._peers.get(fd)
        if peer is None:
            return  # dropped by an event before this one
        if self._guarded(peer, self._rung if fd == peer.bell else self._read):
            self._came = True

    def _guarded(self, peer: Peer, step: Callable[[Peer], bool]) -> bool:
        """Do something for a client, and hang up on it if that fails. False: no request came."""
        try:
            return step(peer)
        except (Violation, InputError) as error:
            self._drop(peer, f"it broke the protocol: {error}")
        except OSError as error:
            self._drop(peer, f"its socket failed: {error}")
        except Exception:
            log.exception("serving %s failed", peer.name)
            self._drop(peer, "the executor failed to serve it")
        return False

    def _take_adopted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._adopted.empty():
            self._admit(self._adopted.get(), known=True)

    def _accept(self, listening: socket.socket | None) -> None:
        if listening is None:
            return
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._spare.turn_away(listening, error)
            return
        self._admit(sock)

    def _admit(self, sock: socket.socket, *, known: bool = False) -> None:
        sock.settimeout(0)
        peer = Peer(sock, self._clock() + _GREETING)
        refusal = None
        if not known and not self._limits.allow(peer.uid, peer.gid):
            refusal = Unavailable(f"user {peer.uid} may not use this executor")
        elif len(self._peers) >= self._limits.clients:
            refusal = Unavailable(f"{self._limits.clients} clients are connected, as many as may be")
        if refusal is not None:
            log.warning("%s was refused: %s", peer.name, refusal)
            _say(sock, encode(Refused(status_of(refusal), refusal.what)))
            hang_up(sock)
            return
        try:
            self._epoll.register(sock, select.EPOLLIN)
        except OSError as error:
            log.warning("%s cannot be listened to: %s", peer.name, error)
            hang_up(sock)
            return
        self._peers[sock.fileno()] = peer
        self._strangers.add(peer)

    def _rung(self, peer: Peer) -> bool:
        """A client rang: from now on it is awake, and its ring is looked at without a bell."""
        if peer.connection is None:
            return False
        peer.connection.wake()
        self._awake[peer] = None
        return self._take(peer)

    def _take(self, peer: Peer) -> bool:
        return peer.connection is not None and peer.connection.take() > 0

    def _read(self, peer: Peer) -> bool:
        """Read one message, and hang up on a client that is gone. It is no request: false."""
        try:
            packet = take(peer.socket)
        except BlockingIOError:
            return False
        if packet:
            self._hear(peer, decode_from_client(packet))
        else:
            self._drop(peer, None)
        return False

    def _hear(self, peer: Peer, message: FromClient) -> None:
        if isinstance(message, Hello):
            self._greet(peer, message)
        elif isinstance(message, Lookup):
            _say(peer.socket, encode(Refused(NO_ROUTES, "this executor has no workers", "say hello to it")))
            self._drop(peer, None)
        elif peer.connection is None:
            raise Violation("it did not begin with a hello")
        elif isinstance(message, Withdraw):
            peer.connection.cancel(message.slot, message.sequence)
        elif isinstance(message, Ask):
            self._answer(peer, message.number)

    def _answer(self, peer: Peer, number: int) -> None:
        """Tell a client what is served."""
        try:
            self._listing.change(self._handler.catalogue())
            self._listing.send(peer.socket, number, peer.version)
        except (StorageError, Unavailable) as error:
            if peer.version >= PROBLEMS:
                problem = Problem(error.what, fix=error.fix)
                peer.socket.send(encode(Catalogue(number, msgspec.Raw(b"null"), problem=problem)))
                return
            _say(peer.socket, encode(Refused(status_of(error), error.what, error.fix)))
            self._drop(peer, str(error))

    def _greet(self, peer: Peer, hello: Hello) -> None:
        if peer.connection is not None:
            raise Violation("it said hello twice")
        try:
            peer.version = agreed(hello.versions)
            layout = agree(hello, self._limits)
            self._welcome(peer, layout)
        except TrtopsError as error:
            _say(peer.socket, encode(Refused(status_of(error), error.what, error.fix)))
            self._drop(peer, f"it was refused: {error}")

    def _welcome(self, peer: Peer, layout: Layout) -> None:
        """Give the client its segment. Its bell is watched before it knows of it, else its first ring could be lost."""
        opened = contextlib.ExitStack()
        try:
            fd, segment = create(layout)
            opened.callback(os.close, fd)
            bell = executors_bell()
            try:
                rung, ring, theirs = clients_bell(peer.version)
            except OSError:
                os.close(bell)
                raise
            opened.callback(theirs.close)
            private = peer.uid not in {0, os.getuid()}
            peer.bell = bell
            peer.connection = Connection(peer.name, segment, rung, ring, self._handler, peer.version, private=private)
            self._bells[bell] = peer
            self._strangers.discard(peer)
            self._handler.mapped(segment.whole)
            self._epoll.register(bell, select.EPOLLIN | select.EPOLLET)  # each ring is an event; nothing to read
            rights = array.array("i", [fd, bell, theirs.fileno()])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            self._listing.change(self._handler.catalogue())
            peer.socket.sendmsg([self._listing.welcome(peer.version)], ancillary)
        except OSError as error:
            raise StorageError(f"no segment for {peer.name}: {error}") from error
        finally:
            opened.close()

    def _drop(self, peer: Peer, why: str | None, *, quiet: bool = False) -> None:
        """Reclaim all that a client had. ``why``: None if it hung up itself."""
        if self._peers.pop(peer.socket.fileno(), None) is None:
            return
        self._strangers.discard(peer)
        if why is not None:
            if not quiet:
                log.warning("hanging up on %s: %s", peer.name, why)
            _say(peer.socket, encode(Refused(6, why)))
        self._epoll.unregister(peer.socket)
        hang_up(peer.socket)
        if peer.connection is not None:
            self._bells.pop(peer.bell, None)
            self._awake.pop(peer, None)
            with contextlib.suppress(OSError):  # it could not be registered
                self._epoll.unregister(peer.bell)
            os.close(peer.bell)
            lost = peer.connection.close()
            if lost:
                log.info("%s went with %d requests in flight", peer.name, lost)


def _linger(wanted: float | None, cores: int) -> float:
    """Seconds to look for the next request of a lone client."""
    if cores <= 1:
        return 0.0
    if wanted is not None:
        return wanted
    return 3e-4 if cores >= _MANY_CORES else 1e-4


def _say(sock: socket.socket, packet: bytes) -> None:
    """Send a packet to a client that may be dead, or not listening: then it is lost, and so is the client."""
    with contextlib.suppress(OSError):
        sock.send(packet)
