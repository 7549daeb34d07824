"""The corpus of documents that policies are held to: tables in ``tests/golden/policy_corpus``, built here into inputs.

A case changes a good base. ``engine``, ``runtime`` and the other parts change what an author or a machine wrote, before
the input is built of it; ``raw`` and ``drop`` change the finished input, as no builder would make it. Keys are paths
with dots; a number is an index.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tests.support.corpus_parts import CONFIG, ENGINE, EVIDENCE, LOCK, NOW, PREFLIGHT, RELEASE, RUNTIME, VERDICT, digest
from trtops.document import load_document
from trtops.evidence import Evidence
from trtops.model.facts import Preflight
from trtops.policy.inputs_evidence import evidence_input
from trtops.policy.inputs_release import Consent, Proposal, SignatureFacts, previous_facts, release_input
from trtops.policy.inputs_source import source_input
from trtops.policy.inputs_spec import spec_input
from trtops.policy.interfaces import InterfaceLock
from trtops.policy.loader import load_policies
from trtops.policy.verdict import Stage, Verdict
from trtops.release.documents import Binding, ConfigRelease, EngineRelease
from trtops.spec.engine import EngineSpec, RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtops.policy.port import PolicySet

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "policy_corpus"
STAGES: tuple[Stage, ...] = get_args(Stage)
KINDS = ("good", "bad", "missing", "type", "adversarial")

Document = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One document with what is expected of it.

    Attributes:
        id: ``stage/rule/kind/name``.
        rule: the rule that it was written for.
        kind: one of :data:`KINDS`.
        document: the input.
        expected: ids of all rules that complain, without their stage.
        authored: no part of the finished input was changed by hand.
    """

    id: str
    stage: Stage
    rule: str
    kind: str
    document: Document
    expected: frozenset[str]
    authored: bool


def changed(base: Any, changes: Mapping[str, Any], drops: list[str] | None = None) -> Any:
    """Copy a document with values set and keys dropped."""
    document = json.loads(json.dumps(base))  # two places may hold one object, and only one is changed
    for path, value in changes.items():
        parent, key = _parent(document, path)
        parent[key] = value
    for path in drops or []:
        parent, key = _parent(document, path)
        del parent[key]
    return document


def _parent(document: Any, path: str) -> tuple[Any, str | int]:
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in above:
        document = document.setdefault(part, {}) if isinstance(document, dict) else document[part]
    return document, last


def _engine(case: Mapping[str, Any]) -> Document:
    return dict(changed(ENGINE, case.get("engine", {}), case.get("engine_drop")))


def _source(case: Mapping[str, Any]) -> Document:
    written = _engine(case)
    return source_input(
        EngineSpec.model_validate(written),
        environment=case.get("environment", "prod"),
        document=written,
        indexes=case.get("indexes", ["https://packages.example.org/simple"]),
        sizes={written["model"]["source"]: case["size"]} if "size" in case else None,
    ).to_json()


def _spec(case: Mapping[str, Any]) -> Document:
    written = _engine(case)
    runtime = changed(RUNTIME, case.get("runtime", {}), case.get("runtime_drop"))
    return spec_input(
        EngineSpec.model_validate(written),
        None if case.get("no_runtime") else RuntimeConfig.model_validate(runtime),
        Preflight.model_validate(changed(PREFLIGHT, case.get("preflight", {}))),
        environment=case.get("environment", "prod"),
        document=written,
        runtime_document=runtime,
        released=None
        if case.get("unlocked")
        else InterfaceLock.model_validate(changed(LOCK, case.get("released", {}))),
    ).to_json()


def _evidence_json(changes: Mapping[str, Any]) -> Document:
    return Evidence.model_validate(changed(EVIDENCE, changes)).model_dump(mode="json")


def _evidence(case: Mapping[str, Any]) -> Document:
    spec = EngineSpec.model_validate(_engine(case))
    evidence = _evidence_json(case.get("evidence", {}))
    expected = {name: evidence[name] for name in ("spec", "model", "plan", "artifact")}
    baseline = case.get("baseline")
    return evidence_input(
        evidence,
        spec,
        environment=case.get("environment", "prod"),
        now=NOW + case.get("later", 0),
        preflight=Preflight.model_validate(changed(PREFLIGHT, case.get("preflight", {}))),
        expected={**expected, **case.get("expected", {})},
        baseline=None if baseline is None else _evidence_json({"artifact": digest("released"), **baseline}),
    ).to_json()


def _release(case: Mapping[str, Any]) -> Document:
    release = EngineRelease.model_validate(changed(RELEASE, case.get("release", {}))).model_dump(mode="json")
    config = ConfigRelease.model_validate(changed(CONFIG, case.get("config", {}))).model_dump(mode="json")
    before = changed(RELEASE, {"contract.version": "2.1.0", **case.get("before", {})})
    first = case.get("first", False)
    binding = {
        "engine": release["engine"],
        "environment": case.get("environment", "prod"),
        "generation": 1 if first else 8,
        "engine_release": digest("release"),
        "config_release": digest("config"),
        "previous": None if first else digest("binding"),
        "reason": "release",
        "actor": "key-channel",
        "created": NOW,
        "expires": NOW + 86400,
    }
    if "candidate" in case:  # the channel of a release that a rollout runs beside this one
        binding["rollout"] = {
            "engine_release": digest("candidate"),
            "config_release": digest("config"),
            "since": NOW,
            "plan": {"channel": case["candidate"], "steps": [{"weight": 5}]},
        }
    bound = Binding.model_validate({**binding, **case.get("binding", {})}).model_dump(mode="json")
    evidence = {artifact["evidence"]: _evidence_json(case.get("evidence", {})) for artifact in release["artifacts"]}
    verdicts = {
        str(release["spec_verdict"]): Verdict.model_validate(
            changed(VERDICT, {"stage": "spec", **case.get("spec_verdict", {})})
        ),
        **{
            str(artifact["verdict"]): Verdict.model_validate(changed(VERDICT, case.get("evidence_verdict", {})))
            for artifact in release["artifacts"]
        },
    }
    for lost in case.get("lost", []):
        verdicts.pop(digest(lost), None)
        evidence.pop(digest(lost), None)
    previous = None if first else (previous_facts(before, digest("before"), 7, config), before["contract"])
    proposal = Proposal(
        action=case.get("action", "release"),
        release=(digest("release"), release),
        config=(digest("config"), config),
        binding=bound,
        evidence=evidence,
        verdicts=verdicts,
        previous=previous,
    )
    return release_input(proposal, _consent(case), now=NOW + case.get("later", 0)).to_json()


def _consent(case: Mapping[str, Any]) -> Consent:
    now = NOW + case.get("later", 0)
    made = {"valid": True, "over": digest("release"), "created": now - 3600}
    approvals = case.get("approvals", [{"key": "key-ann"}, {"key": "key-bob"}])
    here = case.get("environment") == "local"
    signatures = case.get("signatures", [{"key": "key-laptop", "first_use": True} if here else {"key": "key-builder"}])
    return Consent(
        authors=case.get("authors", ["dora", "key-dora"]),
        approvals=[
            {**made, **{key: value for key, value in one.items() if key != "age"}}
            | ({"created": now - one["age"]} if "age" in one else {})
            for one in approvals
        ],
        signatures=[SignatureFacts(**{"valid": True, "first_use": False, **one}) for one in signatures],
    )


BUILDERS: Mapping[Stage, Callable[[Mapping[str, Any]], Document]] = {
    "source": _source,
    "spec": _spec,
    "evidence": _evidence,
    "release": _release,
}


def cases(stage: Stage) -> Iterator[Case]:
    """The cases of a stage, as its table has them."""
    table = load_document(FOLDER / f"{stage}.yaml").data
    for rule, kinds in table.items():
        for kind in KINDS:
            for entry in kinds.get(kind, []):
                yield _case(stage, rule, kind, entry)


def _case(stage: Stage, rule: str, kind: str, entry: Mapping[str, Any]) -> Case:
    document = changed(BUILDERS[stage](entry), entry.get("raw", {}), entry.get("drop"))
    default = [] if kind == "good" else [rule]
    return Case(
        id=f"{stage}/{rule}/{kind}/{entry['name']}",
        stage=stage,
        rule=rule,
        kind=kind,
        document=json.loads(json.dumps(document)),
        expected=frozenset(entry.get("expect", default)),
        authored="raw" not in entry and "drop" not in entry,
    )


def policies(folder: Path) -> PolicySet:
    """The repository's rules with the corpus' own data, so that a limit may be changed and the tests stay."""
    shutil.copytree(ROOT / "policies", folder / "policies")
    shutil.copytree(FOLDER / "data", folder / "policies" / "data", dirs_exist_ok=True)
    (folder / "governance").mkdir()
    (folder / "governance" / "enforcement.yaml").write_text(
        "apiVersion: trtops/v1\nkind: Enforcement\nlevel: soft\n"
        "environments:\n  local: {engine: any, waivers: any}\n  prod: {engine: opa}\n",
        encoding="utf-8",
    )
    return load_policies(folder)
