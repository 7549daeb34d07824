"""Reports as JSON: ``{"apiVersion": "trtops/v1", "kind": …, …}``, keys sorted, ASCII only."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trtops.errors import BuildFailed, InputError, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.accuracy.values import AccuracyReport
    from trtops.bench.results import Benchmark
    from trtops.digest import Digest
    from trtops.errors import TrtopsError
    from trtops.evidence import Evidence
    from trtops.policy.verdict import Verdict
    from trtops.release.documents import Binding
    from trtops.release.root import Root
    from trtops.report.checks import Change, CheckReport, Proposal
    from trtops.report.rows import StageRow
    from trtops.report.running import Pairing


def _document(kind: str, body: dict[str, Any]) -> str:
    whole = {"apiVersion": "trtops/v1", "kind": kind, **body}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"


def verdicts(values: Sequence[Verdict]) -> str:
    """Verdicts, each with its decision, and each finding with whether it blocks."""
    return _document("Verdicts", {"verdicts": [_verdict(value) for value in values]})


def _verdict(value: Verdict) -> dict[str, Any]:
    body: dict[str, Any] = value.model_dump(mode="json")
    for finding, written in zip(value.findings, body["findings"], strict=True):
        written["blocking"] = finding.blocking
    return {**body, "decision": value.decision}


def check(report: CheckReport) -> str:
    """Verdicts, what could not be decided, what was looked at, and what changed policies would do."""
    change, proposal = report.change, report.proposal
    return _document(
        "Verdicts",
        {
            "verdicts": [_verdict(value) for value in report.verdicts],
            "errors": [{"subject": failure.subject, **_error(failure.error)} for failure in report.failures],
            "exit_code": report.exit_code,
            "change": None if change is None else _change(change),
            "proposal": None if proposal is None else _proposal(proposal),
        },
    )


def _change(change: Change) -> dict[str, Any]:
    return {
        "ref": change.ref,
        "base": change.base,
        "engines": {name: [*reasons] for name, reasons in change.engines.items()},
        "gone": [{"name": one.name, "renamed_to": one.renamed_to, "notes": [*one.notes]} for one in change.gone],
        "later": [*change.later],
    }


def _proposal(proposal: Proposal) -> dict[str, Any]:
    return {
        "before": str(proposal.before),
        "after": str(proposal.after) if proposal.after else None,
        "edits": [*proposal.edits],
        "engines": proposal.judged,
        "note": proposal.note,
        "errors": [{"subject": failure.subject, **_error(failure.error)} for failure in proposal.failures],
        "effects": [
            {
                "subject": effect.subject,
                "stage": effect.stage,
                "rule": effect.rule,
                "before": effect.before.model_dump(mode="json") if effect.before else None,
                "after": effect.after.model_dump(mode="json") if effect.after else None,
                "effect": str(effect),
            }
            for effect in proposal.effects
        ],
    }


def error(value: TrtopsError) -> str:
    """An error with its class, exit code and parts."""
    return _document("Error", _error(value))


def _error(value: TrtopsError) -> dict[str, Any]:
    body: dict[str, Any] = {
        "error": type(value).__name__,
        "exit_code": value.exit_code,
        "what": value.what,
        "where": _where(value.where),
        "fix": value.fix,
    }
    if isinstance(value, InputError):
        body["problems"] = [
            {"code": problem.code, "message": problem.message, "where": _where(problem.location), "fix": problem.fix}
            for problem in value.problems
        ]
    if isinstance(value, BuildFailed):
        body["log"] = value.log
    return body


def _where(where: Location | str | None) -> dict[str, Any] | None:
    if where is None:
        return None
    if isinstance(where, Location):
        return {"file": where.file, "line": where.line, "column": where.column}
    return {"name": where}


def accuracy(value: AccuracyReport) -> str:
    """A comparison; numbers that are not finite are text."""
    return _document("Accuracy", value.model_dump(mode="json"))


def benchmark(value: Benchmark) -> str:
    """A measurement: latencies in microseconds, throughput in rows a second."""
    return _document("Benchmark", value.model_dump(mode="json"))


def evidence(values: Sequence[Evidence]) -> str:
    """Records, each with its digest."""
    body = [{**value.model_dump(mode="json"), "digest": str(value.digest())} for value in values]
    return _document("EvidenceList", {"evidence": body})


def stages(rows: Sequence[StageRow]) -> str:
    """Stages of a longer work, in order."""
    body = [
        {
            "stage": row.stage,
            "result": row.result,
            "outcome": row.outcome,
            "seconds": row.seconds,
            "digest": str(row.digest) if row.digest else None,
        }
        for row in rows
    ]
    return _document("Stages", {"stages": body})


def trust(root: Root, held: Iterable[str], published: int | None) -> str:
    """A root of trust, the ids of keys whose private half is here, and the version that the registry has."""
    body = {"root": root.model_dump(mode="json"), "held": sorted(held), "published": published}
    return _document("Trust", body)


def bindings(values: Sequence[Binding], running: Sequence[Pairing] | None = None) -> str:
    """Channel pointers, in the order that they come in; what services run of them."""
    body: dict[str, Any] = {"bindings": [value.model_dump(mode="json") for value in values]}
    if running is not None:
        body["services"] = [_pairing(one) for one in running]
    return _document("Bindings", body)


def history(values: Sequence[Binding], revoked: Mapping[Digest, str]) -> str:
    """Moves of a channel, in the order that they come in; digests of those that a revoked key signed, with why."""
    body: dict[str, Any] = {"bindings": [value.model_dump(mode="json") for value in values]}
    named = {value.digest(): value.generation for value in values}
    body["revoked"] = [
        {"digest": str(digest), "generation": named[digest], "reason": why} for digest, why in revoked.items()
    ]
    return _document("Bindings", body)


def _pairing(value: Pairing) -> dict[str, Any]:
    device, artifact = value.on
    return {
        "service": value.service,
        "engine": value.engine,
        "channel": value.channel,
        "state": value.state,
        "reason": value.words,
        "registry": asdict(value.registry) if value.registry else None,
        "running": {**asdict(value.running), "device": device, "artifact": artifact} if value.running else None,
    }
