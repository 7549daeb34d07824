"""``trtops rollout``: moves a release that runs beside the stable one, step by step, by what services' metrics say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.errors import Conflict, InputError, StorageError, TrustError
from trtops.release.rollout import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtops.digest import Digest
    from trtops.release.analysis import Sample
    from trtops.release.documents import Binding, Channel
    from trtops.release.rollout import Judgement, Moved, Pausing
    from trtops.workflow.workspace import Workspace

MAX_METRICS_BYTES = 64 << 20
_METRICS = "/metrics"


@dataclass(frozen=True)
class Metrics:
    """Where the metrics of a candidate's services are.

    Attributes:
        sources: URLs of control ports (``http://host:port``, with or without ``/metrics``) and files, all summed up.
        window: seconds between two looks, of which the difference counts; 0: one look, everything counts.
        sleep: waits.
    """

    sources: tuple[str, ...] = ()
    window: float = 0.0
    sleep: Callable[[float], Any] = time.sleep


@dataclass(frozen=True)
class Progress:
    """What an advance did.

    Attributes:
        moves: the bindings that it wrote, oldest first.
        held: why it stopped where it is.
    """

    moves: tuple[Binding, ...]
    held: Held

    @property
    def aborted(self) -> bool:
        """Whether the rollout ended so, by this advance or before."""
        return self.held.kind == "aborted"


def standing(workspace: Workspace, engine: str) -> Binding:
    """What the stable channel of an engine binds, with its rollout, expired or not.

    Raises:
        InputError: nothing is released.
        TrustError: the pointer is forged.
        Unavailable: the registry is away.
    """
    from trtops.release import layout
    from trtops.release.fetch import read_binding
    from trtops.workflow.release import channel_of, nothing_released

    registry, channel = workspace.registry(), channel_of(workspace, engine)
    name = layout.pointer(channel)
    body = registry.read(name)
    if body is None:
        raise nothing_released(workspace, registry, engine)
    return read_binding(body, workspace.keys.root(), channel, name)


def pausing(workspace: Workspace, present: Binding) -> Pausing | None:
    """Who paused a rollout, when and why; None if it is not paused, or its history does not tell.

    Raises:
        StorageError, Unavailable: the registry is away.
    """
    from trtops.release.fetch import chain
    from trtops.release.rollout import paused_by

    try:
        return paused_by(chain(workspace.registry(), workspace.keys.root(), present))
    except TrustError:  # a gap in what was before is for `trtops history` to tell
        return None


def advance(
    workspace: Workspace,
    engine: str,
    metrics: Metrics,
    generation: int | None = None,
    moved: Callable[[Binding], object] = lambda _: None,
) -> Progress:
    """Take every step whose condition is met, one signed move each, until something holds.

    A repeated call adds nothing.

    Args:
        workspace: whose environment.
        engine: name.
        metrics: for steps that are an analysis.
        generation: only if the channel stands there; None: wherever it stands.
        moved: called after each move; what was moved stays so if a later step raises.

    Raises:
        Conflict: somebody else moves it, or it stands at another generation.
        InputError: there is no rollout, or a source of metrics is none.
        StorageError, TrustError, Unavailable: the registry, or a service.
    """
    from trtops.release.rollout import advance as decide

    def next_step(present: Binding) -> Moved | Held:
        judgement = _judged(present, metrics)
        marks = _marks(workspace, present) if judgement is not None and judgement.passed is False else ()
        return decide(present, judgement, workspace.now(), marks)

    moves: list[Binding] = []
    while True:
        done = _move(workspace, engine, next_step, generation if not moves else moves[-1].generation)
        if isinstance(done, Held):
            return Progress(tuple(moves), done)
        moves.append(done)
        moved(done)


def pause(workspace: Workspace, engine: str, why: str = "", generation: int | None = None) -> Binding | Held:
    """Hold a rollout where it is.

    Raises:
        Conflict, InputError, StorageError, TrustError, Unavailable: as for :func:`advance`.
    """
    from trtops.release.rollout import pause as decide

    return _move(workspace, engine, lambda present: decide(present, why), generation)


def resume(workspace: Workspace, engine: str, why: str = "", generation: int | None = None) -> Binding | Held:
    """Let a paused rollout go on; the next advance takes its next step.

    Raises:
        Conflict, InputError, StorageError, TrustError, Unavailable: as for :func:`advance`.
    """
    from trtops.release.rollout import resume as decide

    return _move(workspace, engine, lambda present: decide(present, why), generation)


def abort(workspace: Workspace, engine: str, why: str = "", generation: int | None = None) -> Binding | Held:
    """Give all traffic back to the stable release and put the candidate in quarantine.

    Raises:
        Conflict, InputError, StorageError, TrustError, Unavailable: as for :func:`advance`.
    """
    from trtops.release.rollout import abort as decide

    return _move(workspace, engine, lambda present: decide(present, _marks(workspace, present), why), generation)


def readmit(workspace: Workspace, engine: str, text: str, why: str = "") -> Binding | Held:
    """Take a release out of quarantine, with what it is known again by; or one digest.

    Args:
        workspace: whose environment.
        engine: name.
        text: a digest, or the beginning of one (six digits at least).
        why: in words, for the ledger.

    Raises:
        InputError: no digest of the quarantine begins so, or several do.
        Conflict, StorageError, TrustError, Unavailable: as for :func:`advance`.
    """
    from trtops.release.fetch import marks_of
    from trtops.release.rollout import readmit as decide

    registry, root = workspace.registry(), workspace.keys.root()

    def chosen(present: Binding) -> Moved | Held:
        digest = _chosen(present, text)
        marks = marks_of(registry, root, engine, digest)
        return decide(present, (digest, *sorted(marks)), why)

    return _move(workspace, engine, chosen, None)


def _chosen(present: Binding, text: str) -> Digest:
    wanted = text.removeprefix("sha256:").lower()
    found = [one for one in present.rejected if one.value.startswith(wanted)] if len(wanted) >= _SHORTEST else []
    if len(found) == 1:
        return found[0]
    shown = ", ".join(one.short for one in present.rejected[-8:]) or "nothing"
    what = f"{len(found)} digests in the quarantine of {present.where} begin with {text[:80]!r}"
    raise InputError(what, fix=f"in quarantine: {shown}")


_SHORTEST = 6


def _move(
    workspace: Workspace, engine: str, decide: Callable[[Binding], Moved | Held], generation: int | None
) -> Binding | Held:
    from trtops.release import layout
    from trtops.release.publish import move
    from trtops.workflow.release import channel_of, lifetime_of, nothing_released
    from trtops.workflow.trust import keep_fresh

    registry, channel = workspace.registry(), channel_of(workspace, engine)
    if registry.read(layout.pointer(channel)) is None:
        raise nothing_released(workspace, registry, engine)

    def guarded(present: Binding) -> Moved | Held:
        if generation is not None and present.generation != generation:
            raise _elsewhere(channel, present, generation)
        return decide(present)

    lifetime = lifetime_of(workspace)
    done = move(registry, workspace.keys, channel, guarded, now=workspace.now(), lifetime=lifetime)
    if not isinstance(done, Held):
        keep_fresh(workspace)
    return done


def _elsewhere(channel: Channel, present: Binding, generation: int) -> Conflict:
    what = f"{channel} is at generation {present.generation} ({present.reason}), not at {generation}"
    return Conflict(what, fix="look at trtops rollout status, then run this again if it is still wanted")


def _marks(workspace: Workspace, present: Binding) -> tuple[Digest, ...]:
    """What of a candidate goes into quarantine with it."""
    from trtops.release.fetch import own_marks
    from trtops.release.rollout import candidate_of, stable_of

    bad = candidate_of(present)
    if bad is None:
        return ()
    registry, root = workspace.registry(), workspace.keys.root()
    return own_marks(registry, root, present.engine, bad.engine_release, stable_of(present).engine_release)


def _judged(present: Binding, metrics: Metrics) -> Judgement | None:
    """What the metrics say to the step that a rollout is in; they are read only where it asks for them."""
    from trtops.release.analysis import judge, since, total

    rollout = present.rollout
    if not metrics.sources or rollout is None or rollout.phase != "progressing":
        return None
    if rollout.plan.steps[rollout.step].analysis is None:
        return None

    def look() -> Mapping[str, Sample]:
        return total(_read(source, present.engine) for source in metrics.sources)

    found = look()
    if metrics.window:
        metrics.sleep(metrics.window)
        found = since(found, look())
    return judge(present, found)


def _read(source: str, engine: str) -> Mapping[str, Sample]:
    """Channel -> counts of one source.

    Raises:
        InputError: it is no source of metrics.
        StorageError: the file cannot be read.
        Unavailable: nothing answers there.
    """
    from trtops.release.analysis import samples

    if "://" in source:
        from trtops.serve.client import get

        body = get(source.removesuffix("/").removesuffix(_METRICS), _METRICS)
    else:
        body = _file(Path(source))
    try:
        return samples(body.decode("utf-8"), engine, where=source)
    except UnicodeDecodeError:
        raise InputError("these are no metrics: it is no text", where=source) from None


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(MAX_METRICS_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path), fix="give a URL or a file to --metrics") from None
    except OSError as error:
        raise StorageError(f"the metrics cannot be read: {error.strerror}", where=str(path)) from error
    if len(body) > MAX_METRICS_BYTES:
        raise InputError(f"the file has more than {MAX_METRICS_BYTES} bytes", where=str(path))
    return body


def sources_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Sources of metrics, each once.

    Raises:
        InputError: one is empty.
    """
    if any(not text.strip() for text in texts):
        raise InputError("an empty source of metrics", where="--metrics", fix="give a URL or a file")
    return tuple(dict.fromkeys(texts))
