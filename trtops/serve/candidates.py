"""Keeps the candidates of rollouts at what pointers say: :mod:`.beside` decides, this carries out."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtops.errors import TrtopsError
from trtops.executor.port import Channels
from trtops.release.documents import STABLE
from trtops.serve.beside import Adjust, Adopt, Begin, Beside, Misfortune, releases, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.digest import Digest
    from trtops.executor.port import Loader
    from trtops.release.documents import Arm, Binding
    from trtops.serve.pull import Pulled

log = logging.getLogger(__name__)

_NO_CHANNELS = "a candidate needs a worker process of its own: serve without --isolation none"


class Candidates:
    """The candidates of all engines. For the agent's thread; others may read what it says of them."""

    def __init__(self, engines: Loader, clock: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            engines: what loads them, if it has channels.
            clock: monotonic seconds.
        """
        self._engines = engines if isinstance(engines, Channels) else None
        self._clock = clock
        self._states: dict[str, Beside] = {}
        self._pulled: dict[str, Pulled] = {}
        self._told: set[tuple[str, Arm]] = set()

    def __repr__(self) -> str:
        """Show what runs."""
        running = {name: str(state.running.channel) for name, state in self._states.items() if state.running}
        return f"Candidates({running})"

    def retries(self) -> list[float]:
        """When loads that failed may be tried again, in monotonic seconds."""
        return [state.failure.retry_at for state in self._states.values() if state.failure is not None]

    def adopt(self, name: str, binding: Binding, stable: tuple[Digest, Digest] | None) -> Pulled | None:
        """If the candidate that runs is what the pointer calls stable: let it be that, where it is.

        Returns:
            what runs as stable now; None: nothing changed.
        """
        state = self._states.get(name, Beside())
        todo = step(state, binding.arms, stable=stable, now=self._clock())
        if not isinstance(todo, Adopt) or self._engines is None:
            return None
        try:
            self._engines.promote(name, todo.arm.channel)
        except TrtopsError as error:  # it died just now: the release is loaded anew, as any other
            log.warning("engine %s: the candidate cannot become stable where it is: %s", name, error)
            return None
        self._states[name] = Beside()
        log.info("engine %s: the candidate in channel %s is the stable release now", name, todo.arm.channel)
        return self._pulled.pop(name, None)

    def follow(
        self, name: str, binding: Binding, stable: tuple[Digest, Digest] | None, pull: Callable[[Arm], Pulled]
    ) -> str | None:
        """Bring an engine's candidate to what a pointer says.

        Args:
            name: of the engine.
            binding: of the pointer, verified just now.
            stable: releases that serve as stable; None: nothing does.
            pull: fetches and verifies an arm.

        Returns:
            how a load ended, if there was one: ``done`` or ``failed``.
        """
        ended = None
        for _ in range(4):  # withdraw, begin, and that it stays so
            state = self._states.get(name, Beside())
            todo = step(state, binding.arms, stable=stable, now=self._clock())
            if todo is None:
                break
            if self._engines is None:
                self._tell(name, todo.arm)
                break
            if isinstance(todo, Begin):
                ended = "done" if self._begin(name, todo.arm, binding.generation, pull) else "failed"
            elif isinstance(todo, Adjust):
                self._share(name, todo.arm)
            else:
                self._withdraw(name, todo.arm)
        return ended

    def _tell(self, name: str, arm: Arm) -> None:
        if (name, arm) not in self._told:
            self._told.add((name, arm))
            log.warning("engine %s: %s", name, _NO_CHANNELS)
        failure = Misfortune(releases(arm), _NO_CHANNELS, self._clock(), 16)
        self._states[name] = replace(self._states.get(name, Beside()), failure=failure)

    def _begin(self, name: str, arm: Arm, generation: int, pull: Callable[[Arm], Pulled]) -> bool:
        assert self._engines is not None  # noqa: S101 - asked by the caller
        try:
            pulled = pull(arm)
            sidecar = pulled.artifact.sidecar
            self._engines.load(
                name,
                generation=generation,
                version=pulled.release.contract.version,
                digest=str(sidecar.artifact),
                backend=sidecar.backend,
                batching=pulled.batching,
                instances=pulled.release.execution.instances,
                open_session=pulled.open_session,
                profiles=sidecar.profiles,
                memory=pulled.release.memory,
                execution=pulled.release.execution,
                channel=arm.channel,
            )
        except Exception as error:
            if not isinstance(error, TrtopsError):
                log.exception("engine %s: its candidate could not be loaded", name)
            self._failed(name, arm, f"the candidate of generation {generation} could not be loaded: {error}")
            return False
        self._pulled[name] = pulled
        self._states[name] = Beside(running=arm.model_copy(update={"weight": 0, "shadow": 0}), generation=generation)
        log.info("engine %s: the candidate of generation %d runs in channel %s", name, generation, arm.channel)
        self._share(name, arm)
        return True

    def _failed(self, name: str, arm: Arm, reason: str) -> None:
        before = self._states.get(name, Beside()).failure
        again = before is not None and before.releases == releases(arm)
        attempts = before.attempts + 1 if before is not None and again else 1
        self._states[name] = Beside(failure=Misfortune(releases(arm), reason, self._clock(), attempts))
        log.warning("engine %s: %s", name, reason)

    def _share(self, name: str, arm: Arm) -> None:
        assert self._engines is not None  # noqa: S101 - asked by the caller
        self._engines.share(name, {STABLE: 100 - arm.weight, arm.channel: arm.weight}, {arm.channel: arm.shadow})
        self._states[name] = replace(self._states[name], running=arm)

    def _withdraw(self, name: str, arm: Arm) -> None:
        assert self._engines is not None  # noqa: S101 - asked by the caller
        try:
            self._engines.share(name, {STABLE: 100})
            self._engines.unload(name, arm.channel)
        except TrtopsError as error:
            log.warning("engine %s: its candidate could not be taken out: %s", name, error)
        self._states[name] = Beside()
        self._pulled.pop(name, None)
        log.info("engine %s: channel %s serves no more", name, arm.channel)

    def renew(self, name: str, again: Callable[[Pulled], Pulled]) -> None:
        """Take what vouches for the candidate of an engine now, and its secrets, in the place of what was pulled."""
        if (pulled := self._pulled.get(name)) is not None:
            self._pulled[name] = again(pulled)

    def vouch(self, name: str, ask: Callable[[Pulled], tuple[Pulled, str | None]]) -> None:
        """Hold the candidate of an engine against the keys that are trusted now.

        Args:
            name: of the engine.
            ask: gives what runs, with the documents that vouch for it, and why trusted keys do not; None: they do.
        """
        pulled = self._pulled.get(name)
        if pulled is None:
            return
        self._pulled[name], doubt = ask(pulled)
        state = self._states[name]
        if doubt != state.doubt:
            log.warning("engine %s: its candidate: %s", name, doubt or "trusted keys vouch for it again")
            self._states[name] = replace(state, doubt=doubt)

    def forget(self, name: str) -> None:
        """The engine was taken out of all channels."""
        self._states.pop(name, None)
        self._pulled.pop(name, None)

    def running(self, name: str) -> Arm | None:
        """The candidate of an engine that is loaded."""
        state = self._states.get(name)
        return state.running if state is not None else None

    def generations(self) -> dict[tuple[str, str], int]:
        """Engine and channel of every candidate that is loaded -> its generation. Any thread may ask."""
        states = tuple(self._states.items())
        return {(name, state.running.channel): state.generation for name, state in states if state.running}

    def describe(self, name: str) -> dict[str, Any] | None:
        """The candidate of an engine, as a JSON object; None: there is none."""
        state = self._states.get(name)
        if state is None or (state.running is None and state.failure is None):
            return None
        if state.running is None:
            return {"status": "failed", "reason": state.failure.reason if state.failure else None}
        arm, pulled = state.running, self._pulled.get(name)
        ill = self._engines.ailing().get((name, arm.channel)) if self._engines is not None else None
        described: dict[str, Any] = {
            "status": "failed" if ill else "degraded" if state.doubt else "ready",
            "reason": ill or state.doubt,
            "channel": arm.channel,
            "generation": state.generation,
            "weight": arm.weight,
            "shadow": arm.shadow,
            "engine_release": str(arm.engine_release),
            "config_release": str(arm.config_release),
        }
        return described if pulled is None else described | pulled.described()
