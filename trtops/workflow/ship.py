"""``trtops ship``: every stage of one engine in its order, by the same workflows as the single verbs."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.errors import Conflict, Denied, TrtopsError
from trtops.report.rows import StageRow
from trtops.workflow import build as building
from trtops.workflow import measure as measuring
from trtops.workflow import release as releasing
from trtops.workflow.check import Checked, check
from trtops.workflow.judge import open_gate
from trtops.workflow.smoke import smoke

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trtops.digest import Digest
    from trtops.policy.gate import Gate
    from trtops.policy.verdict import Verdict
    from trtops.release.documents import Channel
    from trtops.report.rows import Outcome
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.measure import Measured
    from trtops.workflow.release import Current, Judged, Released
    from trtops.workflow.smoke import Smoke
    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Expected:
    """What a plan was made for; a shipment that meets anything else does nothing.

    Attributes:
        spec: digest of the engine's spec.
        policies: digest of all that judges.
        generation: of the channel; 0: nothing is released.
    """

    spec: Digest
    policies: Digest
    generation: int


@dataclass(frozen=True)
class Options:
    """What the command line asks of a shipment.

    Attributes:
        smoke: start a server process at the end and ask it.
        rebuild: build what is cached, too; implies measuring anew.
        fresh: measure again what is measured.
        only: ids of targets; empty: all.
        publish: False stops before the registry: everything is built, measured and judged, nothing is released.
        expected: the world that a plan was made for; None: whatever is found.
    """

    smoke: bool = False
    rebuild: bool = False
    fresh: bool = False
    only: tuple[str, ...] = ()
    publish: bool = True
    expected: Expected | None = None


@dataclass
class Shipment:
    """What happened so far; complete once :func:`ship` returns, and still readable when it raises.

    Attributes:
        rows: one a stage.
        verdicts: every verdict on what can be judged here, in order.
        measured: evidence by target.
        released: None if it did not come to that.
        answer: of the smoke test.
    """

    rows: list[StageRow] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    released: Released | None = None
    answer: Smoke | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[..., None]]:
        """Time a stage. The block tells its result by calling what it is given; an error makes the row ``failed``."""
        start = time.perf_counter()
        told: list[StageRow] = []

        def tell(result: str, digest: object = None, outcome: Outcome = "done") -> None:
            told.append(StageRow(name, result, time.perf_counter() - start, digest, outcome))  # type: ignore[arg-type]

        try:
            yield tell
        except TrtopsError as error:
            word = "denied" if isinstance(error, Denied) else "failed"
            self.rows.append(StageRow(name, word, time.perf_counter() - start, None, "failed"))
            raise
        self.rows += told


def ship(workspace: Workspace, folder: Path, options: Options, shipment: Shipment) -> Shipment:
    """Take an engine through every stage.

    Args:
        workspace: where.
        folder: of the engine.
        options: what is asked.
        shipment: filled while it goes on, so that a caller can show what was done before an error.

    Raises:
        Denied: a policy says no; ``shipment.verdicts`` holds the findings.
        TrtopsError: a stage failed; what was released before is still released.
    """
    with open_gate(workspace) as gate:
        checked = _check(workspace, folder, gate, shipment)
        _meet(options.expected, checked.spec.digest(), gate.policies.digest)
        builds = _build(workspace, checked, options, shipment)
        pairs = _measure(workspace, checked, builds, options, shipment)
        channel = releasing.channel_of(workspace, checked.spec.name)
        baseline = releasing.current(workspace, workspace.registry(), channel)
        _meet_channel(workspace, options.expected, channel)
        judged = _gate(workspace, checked, gate, pairs, baseline, shipment)
        if options.publish:
            _release(workspace, checked, gate, builds, judged, baseline, shipment)
    if options.smoke and options.publish:
        if shipment.released is not None and shipment.released.published.rollout:
            what = "skipped: the candidate answers a share of the requests, and its steps judge it"
            shipment.rows.append(StageRow("smoke", what, None, None, "skipped"))
            return shipment
        with shipment.stage("smoke") as tell:
            answer = smoke(workspace, checked)
            shipment.answer = answer
            tell(f"answered by generation {answer.generation} in {answer.seconds * 1000:.1f} ms")
    return shipment


def _check(workspace: Workspace, folder: Path, gate: Gate, shipment: Shipment) -> Checked:
    with shipment.stage("check") as tell:
        checked = check(workspace, folder, gate)
        shipment.verdicts += checked.verdicts
        if checked.denied:
            raise Denied(f"policies deny {checked.spec.name}", where=checked.engine.document.file)
        rules = sum(len(verdict.rules) for verdict in checked.verdicts)
        found = [finding for verdict in checked.verdicts for finding in verdict.findings]
        tell(f"allowed by {rules} rules" + _noted(len(found)), checked.spec.digest(), "warned" if found else "done")
    return checked


def _meet(expected: Expected | None, spec: Digest, policies: Digest) -> None:
    if expected is not None and (spec, policies) != (expected.spec, expected.policies):
        raise Conflict("spec or policies changed after the plan was looked at", fix="plan again")


def _meet_channel(workspace: Workspace, expected: Expected | None, channel: Channel) -> None:
    """After the baseline was read: publishing refuses a channel that moves from here on."""
    from trtops.release import layout
    from trtops.release.fetch import read_binding

    if expected is None:
        return
    name = layout.pointer(channel)
    body = workspace.registry().read(name)
    found = read_binding(body, workspace.keys.root(), channel, name).generation if body is not None else 0
    if found != expected.generation:
        what = f"{channel} is at generation {found}; it was at {expected.generation} when the plan was made"
        raise Conflict(what, where=name, fix="plan again")


def _noted(count: int) -> str:
    return f", {count} finding{'s' if count != 1 else ''}" if count else ""


def _build(workspace: Workspace, checked: Checked, options: Options, shipment: Shipment) -> tuple[TargetBuild, ...]:
    builds: list[TargetBuild] = []
    for target in building.chosen(checked, options.only):
        with shipment.stage(f"build {target.id}") as tell:
            (one,) = building.build(workspace, checked, only=(target.id,), rebuild=options.rebuild)
            one = building.or_taken(workspace, checked, one)
            builds.append(one)
            if one.taken is not None:
                words = f"taken over from builder {one.taken.provenance.builder[:12]}"
                tell(words, one.taken.sidecar.artifact, "reused")
            elif one.built is None:
                tell(f"skipped: {one.skipped}", None, "warned" if one.refused else "skipped")
            elif one.refused is not None:
                tell(
                    f"{'reused' if one.built.cached else 'built'}; {one.refused}", one.built.sidecar.artifact, "warned"
                )
            elif one.built.cached:
                tell("reused", one.built.sidecar.artifact, "reused")
            else:
                tell("built", one.built.sidecar.artifact)
    return tuple(builds)


def _measure(
    workspace: Workspace, checked: Checked, builds: Sequence[TargetBuild], options: Options, shipment: Shipment
) -> tuple[tuple[TargetBuild, Measured], ...]:
    pairs = []
    for one in builds:
        if one.built is None:
            continue
        fresh = options.fresh or not one.built.cached
        with shipment.stage(f"measure {one.target.id}"):
            measured = measuring.measure(workspace, checked, one, measuring.Want(fresh=fresh))
        pairs.append((one, measured))
        shipment.measured.append(measured)
        shipment.rows += _measured_rows(one, measured)
    return tuple(pairs)


def _measured_rows(one: TargetBuild, measured: Measured) -> list[StageRow]:
    evidence, target = measured.evidence, one.target.id
    digest = evidence.digest()
    if evidence.accuracy is None or evidence.benchmark is None:
        return [StageRow(f"verify {target}", f"not verified: {evidence.unverified}", None, digest, "skipped")]
    accuracy, row = evidence.accuracy, evidence.benchmark.rows[0]
    passed = "equal within tolerance" if accuracy.passed else "differs"
    verified: Outcome = "reused" if measured.accuracy_reused else "done" if accuracy.passed else "failed"
    worst = f", worst {accuracy.worst.excess:.2g} of it" if accuracy.worst else ""
    again = "evidence reused: " if measured.accuracy_reused else ""
    timed = "evidence reused: " if measured.benchmark_reused else ""
    return [
        StageRow(f"verify {target}", f"{again}{passed}{worst}", measured.accuracy_seconds, digest, verified),
        StageRow(
            f"bench {target}",
            f"{timed}p50 {row.p50.value / 1000:.2f} ms, p99 {row.p99.value / 1000:.2f} ms at batch {row.batch}",
            measured.benchmark_seconds,
            digest,
            "reused" if measured.benchmark_reused else "done",
        ),
    ]


def _gate(
    workspace: Workspace,
    checked: Checked,
    gate: Gate,
    pairs: Sequence[tuple[TargetBuild, Measured]],
    baseline: Current | None,
    shipment: Shipment,
) -> tuple[Judged, ...]:
    with shipment.stage("gate evidence") as tell:
        judged = releasing.judge_evidence(workspace, checked, gate, pairs, baseline)
        # What this machine cannot load has a row of its own that says so; its gate is closed, and no news.
        shipment.verdicts += [one.verdict for one in judged if one.measured.evidence.unverified is None]
        releasing.refuse_denied(checked, judged)
        allowed = [one.build.target.id for one in judged if one.verdict.decision != "deny"]
        findings = [finding for verdict in shipment.verdicts for finding in verdict.findings if not finding.blocking]
        tell(f"allowed: {', '.join(allowed) or 'none'}" + _noted(len(findings)), None, "warned" if findings else "done")
    return judged


def _release(
    workspace: Workspace,
    checked: Checked,
    gate: Gate,
    builds: Sequence[TargetBuild],
    judged: Sequence[Judged],
    baseline: Current | None,
    shipment: Shipment,
) -> None:
    with shipment.stage("release") as tell:
        released = releasing.release(workspace, checked, gate, builds, judged, baseline=baseline)
        shipment.released = released
        shipment.verdicts.append(released.verdict)
        published = released.published
        beside = ", runs beside the stable release: trtops rollout status" if published.rollout else ""
        if published.new:
            tell(f"generation {published.generation} signed and published{beside}", published.release)
        else:
            tell(f"nothing new: generation {published.generation} says the same{beside}", published.release, "reused")
