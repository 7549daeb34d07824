"""Look before you leap: what a plan shows, that it only reads, and that applying it is that or nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.actions import git
from tests.support.repository import write_engine
from trtops.digest import Digest
from trtops.release.plan import EnginePlan, Plan, Side, differences

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Repository

PLAN = "rollout:\n  steps: [{weight: 5}, {pause: manual}]\n"


def planned(repo: Repository, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(repo.call("plan", "--format", "json", *arguments).says(code).out)
    return found


def out(folder: Path) -> str:
    return str(folder / "plan.json")


def test_a_plan_only_reads_and_is_applied_as_it_is(repo: Repository, folder: Path) -> None:
    repo.call("check", "tiny").says(0)  # fetches the model and looks into it
    before = repo.files()
    done = repo.call("plan", "--out", out(folder))
    done.says(
        0, "nothing -> 1: a new release, a new config, stable 100 %", "onnxruntime built", "1 to build, 1 release"
    )
    assert repo.files() == before, "no key, no registry, no artifact"
    repo.call("apply", out(folder)).says(0, "generation 1 signed and published")
    repo.call("plan").says(0, "the channel says the same", "0 to build, 1 keep")
    repo.call("plan", "--out", out(folder)).says(0)
    repo.call("apply", out(folder)).says(0, "the plan moves nothing")
    assert repo.generations() == [1]


def test_a_plan_tells_engine_config_and_weights_apart(shipped: Repository, folder: Path) -> None:
    runtime = shipped.engine / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("scores: true", "scores: false"))
    (one,) = planned(shipped)["engines"]
    before, after = one["before"], one["after"]
    assert (one["move"], one["reason"]) == ("release", "config differs from what is released")
    assert (after["engine_release"], after["config_release"]) == (before["engine_release"], None)
    runtime.write_text(runtime.read_text() + PLAN)
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    (one,) = planned(shipped)["engines"]
    assert (one["move"], one["reason"]) == ("rollout", "engine and config differ from what is released")
    assert one["after"]["weights"] == {"stable": 95, "canary": 5}
    shipped.call("plan", "--out", out(folder)).says(0, "stable 95 %, canary 5 %", "1 rollout")
    shipped.call("apply", out(folder)).says(0, "runs beside the stable release")
    shipped.call("plan").says(0, "the channel says the same")
    shipped.edit("version: 1.1.0", "version: 1.2.0")
    shipped.call("plan", "--out", out(folder)).says(1, "a rollout of", "1 blocked")
    shipped.call("apply", out(folder)).says(1, "tiny: a rollout of")
    shipped.call("rollout", "abort", "tiny").says(0)
    shipped.edit("version: 1.2.0", "version: 1.1.0")
    shipped.call("release", "tiny").says(1, "was aborted before")


def test_it_is_refused_when_the_world_moved(shipped: Repository, folder: Path) -> None:
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("plan", "--out", out(folder)).says(0, "1 release")
    refused = "the world moved since the plan was made"

    shipped.edit("version: 1.1.0", "version: 1.2.0")
    shipped.call("apply", out(folder)).says(3, refused, "tiny: spec ", "plan again")
    shipped.edit("version: 1.2.0", "version: 1.1.0")

    runtime = shipped.engine / "runtime.yaml"
    text = runtime.read_text()
    runtime.write_text(text.replace("port: 8000", "port: 8002"))
    shipped.call("apply", out(folder)).says(3, refused, "tiny: config ")
    runtime.write_text(text)

    limits = shipped.root / "policies" / "data" / "limits.yaml"
    rules = limits.read_text()
    limits.write_text(rules + "\n# another word\n")
    shipped.call("apply", out(folder)).says(3, refused, "policies: ")
    limits.write_text(rules)

    key = shipped.home / "keys" / "channel.pem"
    kept = key.read_bytes()
    key.write_bytes((shipped.home / "keys" / "release.pem").read_bytes())
    assert shipped.call("apply", out(folder)).code in {2, 3}
    key.write_bytes(kept)

    shipped.call("rollback", "tiny").says(2)
    assert shipped.generations() == [1]
    shipped.call("release", "tiny").says(0, "generation 2")  # somebody else, the very same
    shipped.call("apply", out(folder)).says(3, refused, "tiny: its channel was at generation 1", "is at 2")
    assert shipped.generations() == [2, 1]


def test_a_channel_that_moves_while_a_plan_is_applied_is_left_alone(
    shipped: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("plan", "--out", out(folder)).says(0)

    def late(one: Plan, other: Plan) -> tuple[str, ...]:
        found = differences(one, other)
        shipped.run("release", "tiny").says(0, "generation 2")
        return found

    monkeypatch.setattr("trtops.workflow.plan.differences", late)
    shipped.call("apply", out(folder)).says(3, "is at generation 2; it was at 1 when the plan was made")
    assert shipped.generations() == [2, 1]


def test_what_policies_deny_is_shown_and_never_applied(shipped: Repository, folder: Path) -> None:
    runtime = shipped.engine / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("port: 8000", "port: 80"))
    shipped.call("plan", "--out", out(folder)).says(1, "denied", "port 80", "1 denied")
    shipped.call("apply", out(folder)).says(1, "policies deny it", "port 80")
    assert shipped.generations() == [1]


def test_mistakes_are_told(shipped: Repository, folder: Path) -> None:
    shipped.call("apply", str(folder / "none")).says(2, "there is no such plan", "trtops plan --out FILE")
    (folder / "bad.json").write_text("{}")
    shipped.call("apply", str(folder / "bad.json")).says(2, "this is no plan")
    shipped.call("plan", "--out", out(folder)).says(0)
    shipped.call("apply", out(folder), "--env", "dev").says(2, "a plan for local, not for dev", "--env local")
    shipped.call("plan", "other").says(2, "there is no engine")
    shipped.call("plan", "tiny", "--changed-since", "main").says(2, "exclude each other")
    (shipped.home / "root.json").rename(folder / "root.json")
    shipped.call("plan").says(2, "trusts no keys", "root.json")
    assert not (shipped.home / "root.json").exists()


def test_a_plan_that_is_kept_in_the_repository_is_no_change_of_it(shipped: Repository) -> None:
    (shipped.root / ".gitignore").write_text("home\n")
    git(shipped.root, "init", "-q", "-b", "main")
    git(shipped.root, "add", "-A")
    git(shipped.root, "commit", "-q", "-m", "base")
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("plan", "--out", "plan.json").says(0, "trtops apply plan.json --env local")
    shipped.call("apply", "plan.json").says(0, "generation 2 signed and published")
    shipped.edit("version: 1.1.0", "version: 1.2.0")
    shipped.call("plan", "--out", "plan.json").says(0)
    git(shipped.root, "add", "-A")
    git(shipped.root, "commit", "-q", "-m", "committed since")
    shipped.call("apply", "plan.json").says(3, "commit: ", "the world moved")


def matrix(repo: Repository, *arguments: str) -> list[dict[str, Any]]:
    done = repo.call("plan", "--format", "github-matrix", *arguments).says(0)
    assert done.out.count("\n") == 1
    found: list[dict[str, Any]] = json.loads(done.out)["include"]
    return found


def test_the_matrix_has_changed_engines_by_targets_with_labels_from_data(repo: Repository) -> None:
    write_engine(repo.root / "engines" / "other", repo.spec.read_text().replace("name: tiny", "name: other"))
    spec = repo.root / "engines" / "other" / "engine.yaml"
    text = re.sub(r"sha256: \w+", f"sha256: {Digest.of_file(spec.parent / 'model.onnx').value}", spec.read_text())
    spec.write_text(
        text.replace(
            "  - backend: onnxruntime\n",
            '  - backend: onnxruntime\n  - {backend: tensorrt, version: "8.6", '
            'gpu: {name: H200, compute_capability: "9.0"}}\n',
        )
    )
    cpu, gpu = ["ubuntu-24.04"], ["self-hosted", "linux", "x64", "gpu-h200"]
    assert matrix(repo) == [
        {"engine": "other", "target": "onnxruntime", "runner": cpu},
        {"engine": "other", "target": "tensorrt-8.6-h200", "runner": gpu},
        {"engine": "tiny", "target": "onnxruntime", "runner": cpu},
    ]
    (repo.root / ".gitignore").write_text("home\n")
    git(repo.root, "init", "-q", "-b", "main")
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "base")
    assert matrix(repo, "--changed-since", "main") == []
    repo.edit("[4, 8]", "[2, 8]")
    assert [one["engine"] for one in matrix(repo, "--changed-since", "main")] == ["tiny"]
    runners = repo.root / "governance" / "runners.yaml"
    runners.write_text(runners.read_text().replace("[ubuntu-24.04]", "[self-hosted]"))
    # Whose change is looked at does not choose the machine that it runs on.
    (one,) = matrix(repo, "tiny", "--policies-from", "main")
    assert one["runner"] == cpu
    (one,) = matrix(repo, "tiny")
    assert one["runner"] == ["self-hosted"]


def test_runners_are_those_of_the_revision_that_the_settings_name(repo: Repository) -> None:
    """Not only where a flag names it: a job says once, in its environment, whose rules count."""
    git(repo.root, "init", "-q", "-b", "main")
    git(repo.root, "add", "governance", "policies", "engines", "trtops.toml")
    git(repo.root, "commit", "-q", "-m", "merged")
    runners = repo.root / "governance" / "runners.yaml"
    runners.write_text(runners.read_text().replace("[ubuntu-24.04]", "[self-hosted]"))
    for revision, labels in (("", ["self-hosted"]), ("main", ["ubuntu-24.04"])):
        environment = {"TRTOPS_POLICIES_FROM": revision} if revision else {}
        done = repo.call("plan", "--format", "github-matrix", **environment).says(0)
        assert json.loads(done.out)["include"][0]["runner"] == labels


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runners: []", "no runner takes the target onnxruntime of tiny"),
        ("runners: [{match: {}, labels: [a]}]", "at least one of backend"),
        ("runners: [{match: {backend: cuda}, labels: [a]}]", "runners.yaml:"),
        ("runners: [{match: {backend: onnxruntime}, labels: []}]", "labels"),
        ("runners: [{match: {backend: onnxruntime}, labels: ['a b']}]", "labels"),
        ("runners: [{match: {cpu: x}, labels: [a]}]", "cpu"),
    ],
)
def test_runners_that_are_wrong_are_told(repo: Repository, text: str, words: str) -> None:
    (repo.root / "governance" / "runners.yaml").write_text(f"apiVersion: trtops/v1\nkind: Runners\n{text}\n")
    repo.call("plan", "--format", "github-matrix").says(2, words)


def test_differences_name_what_moved() -> None:
    side, moved = Side(generation=1), Side(generation=2)
    digest = Digest.of_bytes(b"x")
    engine = EnginePlan(
        engine="a", spec=digest, config=digest, verdict=None, decision="allow", targets=(), move="keep",
        before=side, after=side, reason="r",
    )  # fmt: skip
    plan = Plan(
        environment="e", registry="file:r", commit=None, policies=digest, judge="opa 1", keys={"release": "k"},
        root=None, trtops="1", engines=(engine,), created=1,
    )  # fmt: skip
    assert differences(plan, plan.model_copy(update={"created": 2})) == ()
    other = plan.model_copy(update={"keys": {"release": "other"}, "judge": "opa 2"})
    assert differences(plan, other) == (
        "judge: opa 1 in the plan, opa 2 now",
        "release key: k in the plan, other now",
    )
    assert differences(plan, plan.model_copy(update={"engines": ()})) == ("a: only in the plan",)
    for change, words in (
        ({"before": moved}, "a: its channel was at generation 1 (None), and is at 2 (None)"),
        ({"after": moved}, "a: it would move to something else now"),
        ({"move": "release"}, "a: move keep in the plan, release now"),
    ):
        now = plan.model_copy(update={"engines": (engine.model_copy(update=change),)})
        assert differences(plan, now) == (words,)
