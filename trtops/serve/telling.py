"""What an agent tells of its engines: health, readiness, what runs. Its own thread writes, any thread may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.executor.port import Channels
from trtops.release.documents import STABLE
from trtops.serve.candidates import Candidates
from trtops.serve.reconcile import State, health

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.executor.port import Loader
    from trtops.serve.duty import Duty
    from trtops.serve.pull import Pulled
    from trtops.serve.trusting import Trust


class Telling:
    """The state of every engine, and what is said of it."""

    def __init__(self, duty: Duty, engines: Loader, trust: Trust, clock: Callable[[], float]) -> None:
        """Begin with nothing that serves. ``parts`` may tell more in :meth:`status`, each by its name.

        Args:
            duty: what is to be served.
            engines: the executor.
            trust: the keys that are followed.
            clock: monotonic seconds.
        """
        self._duty = duty
        self._engines = engines
        self._trust = trust
        self._clock = clock
        self._states: dict[str, State] = {name: State() for name in duty.engines}
        self._pulled: dict[str, Pulled] = {}
        self._draining = False
        self.candidates = Candidates(engines, clock)
        self.parts: dict[str, Callable[[], Any]] = {}

    def drain(self) -> None:
        """Say from now on that no new traffic should come."""
        self._draining = True

    def settings(self, name: str) -> dict[str, Any] | None:
        """The runtime config of an engine as it runs, secrets opened: for the service that this agent lives in.

        Plain data, each reference a ``SecretStr`` (docs/examples/embedded_service.py). None: nothing runs, no identity.
        """
        pulled = self._pulled.get(name)
        return pulled.settings if pulled is not None else None

    # What front ends ask (trtops.serve.routes.Health).

    def not_ready(self) -> str | None:
        """Why no traffic should come now; None if every engine serves."""
        if self._draining:
            return "draining: this server is about to stop"
        for name, (level, reason) in self._levels().items():
            if level == "starting":
                return f"engine '{name}' does not serve yet: {reason or 'loading'}"
        return None

    def absent(self, name: str) -> str | None:
        """Why an engine of this server does not serve; None: it is none of its engines."""
        state = self._states.get(name)
        if state is None:
            return None
        if state.stopped:
            return "it was unloaded"
        return health(state, self._clock(), self._duty.grace)[1] or "it is being loaded"

    def absences(self) -> dict[str, str]:
        """Engines of this server that do not serve, each with the reason."""
        waiting = [name for name, state in tuple(self._states.items()) if state.running is None]
        return {name: why for name in waiting if (why := self.absent(name)) is not None}

    def _levels(self) -> Mapping[str, tuple[str, str | None]]:
        now = self._clock()
        levels = {name: health(state, now, self._duty.grace) for name, state in tuple(self._states.items())}
        ailing = self._engines.ailing() if isinstance(self._engines, Channels) else {}
        ill = {name: why for (name, channel), why in ailing.items() if channel == STABLE and name in levels}
        return levels | {name: ("starting", why) for name, why in ill.items()}

    def status(self) -> dict[str, Any]:
        """The state in detail, as a JSON object. Holds no value of any config."""
        levels = self._levels()
        worst = next(
            (level for level in ("starting", "degraded") if any(level == found for found, _ in levels.values())),
            "ready",
        )
        return {
            "status": "draining" if self._draining else worst,
            "environment": self._duty.environment,
            "channel": self._duty.channel,
            "trust": self._trust.described(),
            "engines": {name: self._describe(name, *level) for name, level in levels.items()},
        } | {part: tell() for part, tell in self.parts.items()}

    def _describe(self, name: str, level: str, reason: str | None) -> dict[str, Any]:
        state, pulled = self._states[name], self._pulled.get(name)
        described: dict[str, Any] = {"status": level, "reason": reason}
        if state.running is not None and pulled is not None:
            described |= {"generation": state.running.generation} | pulled.described()
            described |= {
                "engine_release": str(state.running.engine_release),
                "config_release": str(state.running.config_release),
            }
        candidate = self.candidates.describe(name)
        return described if candidate is None else described | {"candidate": candidate}

    def channels(self) -> tuple[tuple[str, str, str, str], ...]:
        """Engine, channel, engine release and config release of all that runs."""
        found = []
        for name, state in tuple(self._states.items()):
            if state.running is not None:
                found.append((name, STABLE, str(state.running.engine_release), str(state.running.config_release)))
            if (arm := self.candidates.running(name)) is not None:
                found.append((name, arm.channel, str(arm.engine_release), str(arm.config_release)))
        return tuple(found)
