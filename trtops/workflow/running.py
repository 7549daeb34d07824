"""``trtops status --service``: what services say that they run, set beside what the registry names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.report.running import Pairing, Side

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.release.documents import Arm, Binding
    from trtops.release.fetch import Status
    from trtops.report.running import Step

STATUS = "/v2/trtops/status"


class RunningArm(BaseModel):
    """What a service says of one engine in one channel; fields that it does not know are None."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: str
    reason: str | None = None
    channel: str | None = None
    generation: int | None = None
    version: str | None = None
    target: str | None = None
    device: str | None = None
    digest: str | None = None
    engine_release: str | None = None
    config_release: str | None = None


class RunningEngine(RunningArm):
    """An engine that a service serves, and the candidate beside it."""

    candidate: RunningArm | None = None


class Service(BaseModel):
    """What a service says of itself (``GET /v2/trtops/status`` of its control port)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: str
    environment: str
    channel: str = "stable"
    engines: dict[str, RunningEngine]


@dataclass(frozen=True)
class Compared:
    """Every pairing, and the services that gave no answer with the reason."""

    pairings: tuple[Pairing, ...]
    problems: tuple[TrtopsError, ...]


def compare(found: Sequence[Status], urls: Sequence[str], environment: str, engine: str | None = None) -> Compared:
    """Ask services, and set their answers beside the registry's.

    Args:
        found: what the registry's channels name.
        urls: control ports of services, ``http://host:port``.
        environment: whose registry it is.
        engine: only this one; None: all that either side knows.
    """
    pairings: list[Pairing] = []
    problems: list[TrtopsError] = []
    for url in dict.fromkeys(urls):
        try:
            service = ask(url)
            if service.environment != environment:
                what = f"this service is of the environment {service.environment}, not of {environment}"
                raise InputError(what, where=url, fix=f"trtops status --env {service.environment} --service {url}")
        except TrtopsError as error:
            problems.append(error)
            continue
        bindings = {one.binding.engine: one.binding for one in found if one.binding is not None
                    and one.channel.name == service.channel}  # fmt: skip
        names = sorted(name for name in {*service.engines, *bindings} if engine in (None, name))
        for name in names:
            pairings += _pairs(url, name, bindings.get(name), service.engines.get(name))
    return Compared(tuple(pairings), tuple(problems))


def ask(url: str) -> Service:
    """What a service says of itself.

    Raises:
        InputError: the URL is none, or what answers there is no service of trtops.
        Unavailable: nothing answers.
    """
    from trtops.serve.client import get

    try:
        return Service.model_validate_json(get(url, STATUS))
    except ValidationError:
        raise InputError("what answers there is no control port of trtops serve", where=url) from None
    except InputError as error:
        fix = "give the control port (8001 unless --control-port says otherwise), not the data port"
        raise InputError(error.what, where=url, fix=error.fix or fix) from None
    except Unavailable as error:
        raise Unavailable(error.what, where=url, fix="is it running? trtops serve prints its control port") from None


def _pairs(url: str, name: str, binding: Binding | None, engine: RunningEngine | None) -> Iterator[Pairing]:
    running = {"stable": engine, engine.candidate.channel or "candidate": engine.candidate} if (
        engine is not None and engine.candidate is not None
    ) else {"stable": engine}  # fmt: skip
    arms = {arm.channel: arm for arm in binding.arms} if binding is not None else {}
    for channel in dict.fromkeys((*arms, *running)):
        generation = binding.generation if binding is not None else None
        yield _paired(url, name, channel, arms.get(channel), generation, running.get(channel))


def _paired(
    url: str, name: str, channel: str, arm: Arm | None, generation: int | None, running: RunningArm | None
) -> Pairing:
    named = Side(generation, str(arm.engine_release), str(arm.config_release)) if arm is not None else None
    runs = Side(running.generation, running.engine_release, running.config_release) if running is not None else None
    state: Step
    if runs is None or runs.engine_release is None:
        runs, state = None, "nothing"
    elif named is not None and runs.pair == named.pair:
        state = "in step"
    else:
        state = "behind" if named is not None and (runs.generation or 0) < (generation or 0) else "other"
    on = (running.device or running.target, running.digest) if running is not None else (None, None)
    return Pairing(url, name, channel, named, runs, on, state, running.reason if running else None)
