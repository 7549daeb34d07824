"""A plan: what a release would build, publish and move, and the state of the world that it is for. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trtops.digest import Digest, Value
from trtops.release.documents import Weights

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY_DIGITS = 12

Decision = Literal["allow", "warn", "deny"]
Build = Literal["reuse", "build", "elsewhere"]
Move = Literal["keep", "release", "rollout", "blocked", "denied"]


class TargetPlan(Value):
    """One target of an engine.

    Attributes:
        target: its id.
        build: ``reuse``: the store has it, vouched for by a builder key; ``build``: this machine would build it;
            ``elsewhere``: this machine cannot.
        key: cache key of the build here; None where this machine cannot build it.
        artifact: digest of what is reused; None where it is known only after the build.
        reason: why it is not built here, or why what another machine handed on is not taken; None: neither.
        runner: labels of the CI runners that take it; None where ``governance/runners.yaml`` names none.
    """

    target: str
    build: Build
    key: Digest | None = None
    artifact: Digest | None = None
    reason: str | None = None
    runner: tuple[str, ...] | None = None


class Side(Value):
    """What a channel binds, before or after.

    Attributes:
        generation: of the pointer; 0: there is none.
        binding: digest of the pointer's binding; None before the first, and after: it is not made yet.
        engine_release, config_release: digests of the stable release; None where they are known only after the build.
        weights: who gets how much.
    """

    generation: Annotated[int, Field(ge=0)]
    binding: Digest | None = None
    engine_release: Digest | None = None
    config_release: Digest | None = None
    weights: Weights = Field(default_factory=dict)


class EnginePlan(Value):
    """What would become of one engine.

    Attributes:
        engine: name.
        spec: digest of its spec.
        config: identity of the config release that would be bound.
        verdict: digest of what policies say of the spec; None where the source was denied, or they could not decide.
        decision: theirs.
        targets: every target.
        move: ``keep``: the channel says it already; ``release``: all traffic at once; ``rollout``: beside the stable
            release; ``blocked``: a rollout of something else is open; ``denied``: policies say no.
        before, after: what the channel binds; ``after`` is ``before`` where nothing moves.
        reason: why, in words.
    """

    engine: str
    spec: Digest
    config: Digest
    verdict: Digest | None
    decision: Decision
    targets: tuple[TargetPlan, ...]
    move: Move
    before: Side
    after: Side
    reason: str


class Plan(Value):
    """A plan, and the world that it is for.

    Attributes:
        environment, registry: where it releases to; a registry's URL holds no credentials.
        commit: of the repository; None outside of git.
        policies: digest of all that judges.
        judge: name and version of the engine that evaluated them.
        keys: role -> key id that would sign; None where the key is not here: any trusted one may sign then.
        root: digest of the trusted keys; None where they would be made.
        trtops: version of the tool.
        engines: sorted by name.
        created: epoch seconds; no part of what is compared.
    """

    apiVersion: Literal["trtops/v1"] = "trtops/v1"  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Plan"] = "Plan"
    environment: str
    registry: str
    commit: str | None
    policies: Digest
    judge: str
    keys: dict[str, str | None]
    root: Digest | None
    trtops: str
    engines: tuple[EnginePlan, ...]
    created: int

    @property
    def moves(self) -> tuple[EnginePlan, ...]:
        """The engines that would be released."""
        return tuple(one for one in self.engines if one.move in {"release", "rollout"})


def differences(planned: Plan, now: Plan) -> tuple[str, ...]:
    """What of the world is not as it was when a plan was made, in words; empty if a plan made now would be the same."""
    return tuple(_differences(planned, now))


def _differences(planned: Plan, now: Plan) -> Iterator[str]:
    for name in ("environment", "registry", "commit", "policies", "judge", "root", "trtops"):
        was, found = getattr(planned, name), getattr(now, name)
        if was != found:
            yield f"{name}: {_shown(was)} in the plan, {_shown(found)} now"
    for role, key in sorted(planned.keys.items()):
        if key is not None and key != now.keys.get(role):
            yield f"{role} key: {key[:_KEY_DIGITS]} in the plan, {(now.keys.get(role) or 'none')[:_KEY_DIGITS]} now"
    before, after = {one.engine: one for one in planned.engines}, {one.engine: one for one in now.engines}
    for engine in sorted(before.keys() | after.keys()):
        if engine not in before or engine not in after:
            yield f"{engine}: {'only in the plan' if engine in before else 'not in the plan'}"
            continue
        yield from (f"{engine}: {words}" for words in _engine(before[engine], after[engine]))


def _engine(planned: EnginePlan, now: EnginePlan) -> Iterator[str]:
    for name in ("spec", "config", "verdict", "decision", "move"):
        was, found = getattr(planned, name), getattr(now, name)
        if was != found:
            yield f"{name} {_shown(was)} in the plan, {_shown(found)} now"
    if planned.before != now.before:
        was, found = planned.before, now.before
        then = f"generation {was.generation} ({_shown(was.binding)})"
        yield f"its channel was at {then}, and is at {found.generation} ({_shown(found.binding)})"
    elif planned.after != now.after:
        yield "it would move to something else now"
    if planned.targets != now.targets:
        were = {one.target: one for one in planned.targets}
        changed = sorted(one.target for one in now.targets if were.get(one.target) != one)
        yield f"targets are built otherwise now: {', '.join(changed) or 'some are gone'}"


def _shown(value: object) -> str:
    if isinstance(value, Digest):
        return value.short
    return str(value)
