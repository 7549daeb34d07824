"""The agent: keeps the executor at what the registry's channel pointers say.

One thread does everything, one engine after the other: it reads a pointer, verifies it, asks :mod:`.reconcile` what to
do, and does it. A watch only wakes it up, so a watch that goes missing costs a poll interval and nothing else.

This module is a composition root: backends are made here, by name.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from trtops.backend import select
from trtops.errors import StorageError, TrtopsError, TrustError, Unavailable
from trtops.executor.examine import NATIVE, Examined
from trtops.executor.port import Channels
from trtops.release import layout
from trtops.release.documents import Channel
from trtops.release.trust import TrustedChannel
from trtops.serve.faults import UnknownModel
from trtops.serve.orders import Order
from trtops.serve.pull import Pulled, Secrets, pull, reopened
from trtops.serve.reconcile import (
    Confirm,
    Failure,
    Load,
    Observed,
    Pointed,
    Restore,
    State,
    noted,
    reconcile,
)
from trtops.serve.telling import Telling
from trtops.serve.trusting import Trust
from trtops.serve.vouching import Vouching

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.executor.port import Loader
    from trtops.registry.port import Registry, Watch
    from trtops.release.documents import Arm
    from trtops.serve.duty import Duty
    from trtops.serve.pull import Artifacts, Loads
    from trtops.serve.snapshot import Snapshots

log = logging.getLogger(__name__)


class Agent(Telling):
    """Serves channels. ``start`` returns at once; ``settled`` tells when every engine was looked at."""

    def __init__(
        self,
        duty: Duty,
        engines: Loader,
        registry: Registry,
        store: Artifacts,
        snapshots: Snapshots,
        *,
        backend_of: Callable[[str], Loads] | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put an agent together; nothing runs yet.

        Args:
            duty: what to serve.
            engines: the executor.
            registry: where documents come from; not trusted.
            store: where artifacts come from; not trusted.
            snapshots: what is kept on this machine.
            backend_of: makes a backend by its name; None: the shipped ones.
            wall: epoch seconds, for expiry.
            clock: monotonic seconds.
        """
        trust = Trust(duty.root, duty.environment, snapshots)
        super().__init__(duty, engines, trust, clock)
        self._registry = registry
        self._store = store
        self._snapshots = snapshots
        self._backend_of = cache(backend_of or (_examined if isinstance(engines, Channels) else select.backend))
        self._secrets = Secrets(self._trust, duty.identity) if duty.identity is not None else None
        self._wall = wall
        self._vouching = Vouching()
        self._watches: dict[str, Watch] = {}
        self._wake: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trtops-agent", daemon=True)
        self.swaps: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        """Show what runs."""
        running = {name: state.running.generation if state.running else None for name, state in self._states.items()}
        return f"<Agent {self._duty.environment}/{self._duty.channel} generations={running}>"

    # Life.

    def start(self) -> None:
        """Begin to watch and to load."""
        self._thread.start()

    def settled(self, timeout: float) -> bool:
        """Wait until every engine was looked at once. False: the time is over."""
        return self._settled.wait(timeout)

    def close(self) -> None:
        """Stop watching and loading; what is loaded keeps serving. Waits for a load that is under way."""
        self._stop.set()
        self._settled.set()  # nobody has to wait for what will not come
        self._wake.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # What operators ask (trtops.serve.routes.Control).

    def load(self, name: str) -> None:
        """Serve an engine, or look again for a new release of it, without waiting for a retry.

        Raises:
            UnknownModel: it is not an engine of this server.
            TrtopsError: it cannot be served.
        """
        self._ask("load", name)

    def unload(self, name: str) -> None:
        """Serve an engine no more until it is loaded again.

        Raises:
            UnknownModel: it is not an engine of this server.
        """
        self._ask("unload", name)

    def _ask(self, verb: str, name: str) -> None:
        if name not in self._states:
            raise UnknownModel(f"'{name:.100}' is no engine of this server: it serves {', '.join(self._states)}")
        order = Order(verb, name)
        self._wake.put(order)
        order.wait(self._thread.is_alive)

    # The thread.

    def _run(self) -> None:
        try:
            self._look_at_all()
            self._settled.set()
            while not self._stop.is_set():
                order = self._next()
                if self._stop.is_set():
                    break
                if order is not None:
                    self._obey(order)
                else:
                    self._look_at_all()
        finally:
            for watch in self._watches.values():
                watch.close()

    def _next(self) -> Order | None:
        """Wait for an order, a change, the next retry or the next poll. Changes that came together are one."""
        now = self._clock()
        failed = [state.failure.retry_at for state in self._states.values() if state.failure is not None]
        retries = [at - now for at in failed + self.candidates.retries()]
        try:
            order = self._wake.get(timeout=max(0.05, min([self._duty.poll, *retries])))
            while order is None and not self._stop.is_set():
                order = self._wake.get_nowait()
        except queue.Empty:
            return None
        return order

    def _obey(self, order: Order) -> None:
        try:
            state = self._states[order.name]
            if order.verb == "unload":
                self._states[order.name] = replace(state, stopped=True, running=None, restored=False)
                if state.running is not None:
                    self._engines.unload(order.name)
                    self.candidates.forget(order.name)
            else:
                self._states[order.name] = replace(state, stopped=False, failure=None, restored=False)
                self._look(order.name)
                level, reason = self._levels()[order.name]
                if level != "ready":
                    order.error = Unavailable(f"engine '{order.name}' is {level}: {reason}")
        except Exception as error:  # noqa: BLE001 - it belongs to whoever gave the order
            order.error = error
        finally:
            order.done.set()

    def _look_at_all(self) -> None:
        for name in self._states:
            if self._stop.is_set():
                return
            try:
                self._watch(name)
                self._look(name)
            except Exception:
                log.exception("engine %s: looking for a release failed", name)

    def _watch(self, name: str) -> None:
        with suppress(StorageError, Unavailable):  # the registry is away: the next poll tries again
            for document in self._trust.watched(layout.pointer(self._channel(name))):
                if document not in self._watches:
                    self._watches[document] = self._registry.watch(document, lambda _body: self._wake.put(None))

    def _channel(self, name: str) -> Channel:
        return Channel(engine=name, environment=self._duty.environment, name=self._duty.channel)

    def _look(self, name: str) -> None:
        """Observe, decide, act."""
        now = self._clock()
        trusted, body, observed = self._observe(name)
        before = self._states[name]
        state = self._states[name] = noted(before, observed, now)
        if state.problem is not None and state.problem != before.problem:
            log.warning("engine %s: %s", name, state.problem)
        if trusted is not None and body is not None and observed.pointed is not None and not state.stopped:
            state = self._adopt(name, trusted, body, observed.pointed)
        action = reconcile(state, observed, now)
        if isinstance(action, Load) and trusted is not None and body is not None:
            self._load(name, trusted, body, action.pointed)
            action = reconcile(self._states[name], observed, self._clock())
        elif isinstance(action, Confirm):
            self._states[name] = replace(state, running=action.pointed, failure=None)
            self._documents(name, {layout.pointer(self._channel(name)): body or b""})
            log.info("engine %s: generation %d names what runs already", name, action.pointed.generation)
        if isinstance(action, Restore):
            self._restore(name)
        if trusted is not None and body is not None and not state.stopped:
            self._look_beside(name, trusted, body)
            if again := reopened(self._pulled.get(name), self._registry.read, self._secrets):
                self._pulled[name] = again
                self._keep_good(trusted.channel, again.documents)
        self._doubt(name)

    def _doubt(self, name: str) -> None:
        """Say so where trusted keys vouch no more for what runs."""
        state, pulled = self._states[name], self._pulled.get(name)
        doubt = None
        if pulled is not None and state.running is not None:
            again, doubt = self._vouching.ask(name, pulled, self._trust.root, self._registry.read)
            if again is not pulled:
                self._documents(name, again.documents)
        if doubt != state.doubt:
            log.warning("engine %s: %s", name, doubt or "trusted keys vouch for what runs again")
            self._states[name] = replace(state, doubt=doubt)
        self.candidates.vouch(
            name, lambda one: self._vouching.ask(f"{name} beside", one, self._trust.root, self._registry.read)
        )

    def _documents(self, name: str, new: dict[str, bytes]) -> None:
        """What vouches for what runs from now on, here and for the next start."""
        pulled = self._pulled.get(name)
        if pulled is not None:
            self._pulled[name] = replace(pulled, documents=pulled.documents | new)
            self._keep_good(self._channel(name), self._pulled[name].documents)

    def _adopt(self, name: str, trusted: TrustedChannel, body: bytes, pointed: Pointed) -> State:
        """A candidate that has become the stable release is served from where it is."""
        state = self._states[name]
        pulled = self.candidates.adopt(name, trusted.binding, state.releases)
        if pulled is not None:
            self._pulled[name] = pulled
            state = self._states[name] = replace(state, running=pointed, failure=None)
            self.swaps[name, "promoted"] += 1
            self._documents(name, {layout.pointer(trusted.channel): body})
        return state

    def _look_beside(self, name: str, trusted: TrustedChannel, body: bytes) -> None:
        """Bring the candidate of a rollout to what the pointer says."""

        def pulled(arm: Arm) -> Pulled:
            beside = trusted.beside(arm)
            return pull(beside, body, self._registry.read, self._store, self._backend_of, self._secrets)

        ended = self.candidates.follow(name, trusted.binding, self._states[name].releases, pulled)
        if ended is not None:
            self.swaps[name, f"candidate-{ended}"] += 1

        pointer = layout.pointer(trusted.channel)

        def again(one: Pulled) -> Pulled:
            one = reopened(one, self._registry.read, self._secrets) or one
            same = one.documents[pointer] == body
            return one if same else replace(one, documents={**one.documents, pointer: body})

        self.candidates.renew(name, again)

    def _observe(self, name: str) -> tuple[TrustedChannel | None, bytes | None, Observed]:
        channel = self._channel(name)
        try:
            seen = self._snapshots.seen(channel)
            now = int(self._wall())
            self._trust.follow(self._registry, now)
            accepts = self._duty.accepts.get(name)
            trusted = TrustedChannel(self._trust.root, channel, seen, accepts=accepts, snapshot=self._trust.snapshot)
            body = self._registry.read(layout.pointer(channel))
            try:
                binding = trusted.update_pointer(body, now)
            finally:
                if trusted.seen is not None and trusted.seen != seen:
                    self._snapshots.keep_seen(trusted.seen)
        except (TrustError, Unavailable, StorageError) as error:
            return None, None, Observed(None, str(error))
        return trusted, body, Observed(Pointed.of(binding))

    def _load(self, name: str, trusted: TrustedChannel, body: bytes, pointed: Pointed) -> None:
        """Pull, load, warm up and swap. Whatever fails leaves what runs as it is."""
        state = self._states[name]
        try:
            pulled = pull(trusted, body, self._registry.read, self._store, self._backend_of, self._secrets)
            how = "adjusted" if self._adjusted(name, pulled, pointed) else "done"
            if how == "done":
                self._hand_over(name, pulled, pointed)
        except Exception as error:
            if not isinstance(error, TrtopsError):
                log.exception("engine %s: generation %d could not be loaded", name, pointed.generation)
            attempts = state.failure.attempts + 1 if state.failure and state.failure.pointed == pointed else 1
            reason = f"generation {pointed.generation} could not be loaded: {error}"
            self._states[name] = replace(state, failure=Failure(pointed, reason, self._clock(), attempts))
            self.swaps[name, "failed"] += 1
            log.warning("engine %s: %s", name, reason)
            return
        self._states[name] = replace(self._states[name], failure=None)
        self.swaps[name, how] += 1
        self._keep_good(trusted.channel, pulled.documents)

    def _keep_good(self, channel: Channel, documents: dict[str, bytes]) -> None:
        try:
            self._snapshots.keep_good(channel, documents)
        except StorageError as error:
            log.warning("engine %s: the last-known-good could not be kept: %s", channel.engine, error)

    def _adjusted(self, name: str, pulled: Pulled, pointed: Pointed) -> bool:
        """Serve by a new config without a load, where only that is new and the executor can; False: it has to load."""
        before, running = self._pulled.get(name), self._states[name].running
        if before is None or running is None or running.engine_release != pointed.engine_release:
            return False
        if before.artifact != pulled.artifact:
            return False  # another target of the release can be loaded by now
        if not self._engines.adjust(name, generation=pointed.generation, batching=pulled.batching):
            return False
        self._pulled[name] = pulled
        self._states[name] = replace(self._states[name], running=pointed)
        log.info("engine %s: generation %d is a new config of what serves: nothing is loaded", name, pointed.generation)
        return True

    def _hand_over(self, name: str, pulled: Pulled, pointed: Pointed) -> None:
        sidecar = pulled.artifact.sidecar
        started = self._clock()
        self._engines.load(
            name,
            generation=pointed.generation,
            version=pulled.release.contract.version,
            digest=str(sidecar.artifact),
            backend=sidecar.backend,
            batching=pulled.batching,
            instances=pulled.release.execution.instances,
            open_session=pulled.open_session,
            profiles=sidecar.profiles,
            memory=pulled.release.memory,
            execution=pulled.release.execution,
        )
        self._pulled[name] = pulled
        self._states[name] = replace(self._states[name], running=pointed)
        log.info(
            "engine %s: generation %d serves, %s on %s, after %.0f ms",
            name,
            pointed.generation,
            sidecar.artifact.short,
            pulled.artifact.target,
            (self._clock() - started) * 1e3,
        )

    def _restore(self, name: str) -> None:
        """Start what ran last, from this machine's disk. Its signatures are verified again; expiry is not asked for."""
        self._states[name] = replace(self._states[name], restored=True)
        channel = self._channel(name)
        documents = self._snapshots.good(channel)
        if documents is None:
            return
        try:
            trusted = TrustedChannel(self._trust.root, channel, accepts=self._duty.accepts.get(name))
            body = documents.get(layout.pointer(channel))
            # Time 0 comes before every expiry: it must not cause an outage (design §4.8), and nothing new comes of it.
            pointed = Pointed.of(trusted.update_pointer(body, 0))
            secrets = replace(self._secrets, kept=True) if self._secrets is not None else None
            pulled = pull(trusted, body or b"", documents.get, self._store, self._backend_of, secrets)
            self._hand_over(name, pulled, pointed)
        except Exception as error:
            if not isinstance(error, TrtopsError):
                log.exception("engine %s: the last-known-good could not be started", name)
            problem = f"{self._states[name].problem or 'no pointer'}; the last-known-good could not be started: {error}"
            self._states[name] = replace(self._states[name], problem=problem)
            log.warning("engine %s: %s", name, problem)
            return
        self.swaps[name, "restored"] += 1
        log.warning("engine %s: generation %d serves from this machine's last-known-good", name, pointed.generation)


def _examined(name: str) -> Loads:
    """A backend for this process, which loads no engine: one that needs CUDA to answer is asked in another process."""
    return Examined(name) if name in NATIVE else select.backend(name)
