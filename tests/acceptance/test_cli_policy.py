"""``trtops policy``: what the verbs for who writes rules print, and how they end."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.changes import privileged, write

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def document(repo: Repository, stage: str = "spec") -> dict[str, Any]:
    body: dict[str, Any] = json.loads(repo.call("policy", "input", "tiny", "--stage", stage).says(0).out)
    return body


@pytest.mark.parametrize("stage", ["source", "spec"])
def test_what_policies_see_can_be_judged_again_from_a_file(repo: Repository, stage: str) -> None:
    found = document(repo, stage)
    assert (found["schema"], found["engine"]) == (f"trtops.{stage}/v1", "tiny")
    write(repo.root / "document.json", json.dumps(found))
    repo.call("policy", "try", "document.json").says(0, "tiny: allowed by ", f"rules of stage {stage}")


def test_a_changed_document_is_denied_at_its_line(repo: Repository) -> None:
    found = document(repo)
    found["runtime"]["server"]["port"] = 80
    write(repo.root / "document.json", json.dumps(found, indent=1))
    done = repo.call("policy", "try", "document.json").says(1, "denied spec.server_port_unprivileged", "port 80")
    assert "document.json:" in done.out
    del found["facts"]["memory"]
    write(repo.root / "document.json", json.dumps(found))
    repo.call("policy", "try", "document.json").says(1, "facts.memory.workspace_bytes is missing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "trtops.spec/v2"}', "its schema is 'trtops.spec/v2'"),
        ('{"schema": 1}', "its schema is 1"),
        ("a: 1", "its schema is None"),
        ("[1]", "where a mapping is expected"),
        ('{"schema": "trtops.spec/v1", "schema": "trtops.spec/v1"}', "is there twice"),
        ("", "the document is empty"),
    ],
)
def test_a_file_that_is_no_document(repo: Repository, text: str, says: str) -> None:
    write(repo.root / "document.json", text)
    repo.call("policy", "try", "document.json").says(2, says)


def test_what_policies_see_holds_no_secret(repo: Repository) -> None:
    runtime = repo.engine / "runtime.yaml"
    write(
        runtime,
        f"{runtime.read_text('utf-8')}database: {{url: db, password: hunter2}}\nsections: {{env: [{{name: A_TOKEN, value: hunter3}}]}}\n",
    )
    done = repo.call("policy", "input", "tiny").says(0, "withheld")
    assert "hunter" not in done.out + done.err
    done = repo.call("check", "tiny").says(1, "spec.secrets_are_references")
    assert "hunter" not in done.out + done.err


def test_a_rule_from_its_first_line_to_its_page(repo: Repository) -> None:
    repo.call("policy", "new", "spec/no_fill_in", "--title", "Nothing is left to fill in").says(
        0, "wrote policies/spec/no_fill_in/rule.rego", "trtops policy test spec/no_fill_in"
    )
    repo.call("policy", "test", "spec/no_fill_in", "--coverage", PATH="").says(
        0, "100 %", "embedded: 2 passed, 0 failed"
    )
    repo.call("policy", "lint", PATH="").says(0, "0 defects", "opa is not installed")
    repo.call("policy", "explain", "spec.no_fill_in").says(0, "Nothing is left to fill in", "prod         soft")
    repo.call("policy", "docs").says(0, "wrote docs/rules/spec/no_fill_in.md")
    repo.call("policy", "docs").says(0, "0 of them changed")
    rule = repo.root / "policies" / "spec" / "no_fill_in" / "rule.rego"
    write(
        rule,
        rule.read_text("utf-8").replace('input.engine == "fill-in"', "input.document.nothing.here > data.limits.none"),
    )
    repo.call("policy", "lint", PATH="").says(1, "rule.rego:22", "there is no `data.limits.none`")
    repo.call("check").says(2, "there is no `data.limits.none`", "rule.rego:22")


def test_the_bundle_is_named_as_verdicts_name_it(repo: Repository) -> None:
    said = repo.call("policy", "bundle", "-o", "out/b.tar.gz").says(0, "wrote out/b.tar.gz").out
    with tarfile.open(repo.root / "out" / "b.tar.gz") as bundle:
        manifest = bundle.extractfile("/.manifest")
        assert manifest is not None
        revision = json.load(manifest)["revision"]
    assert revision in said
    privileged(repo)
    body = json.loads(repo.call("check", "--json").says(1).out)
    assert {verdict["policies"] for verdict in body["verdicts"]} == {revision}
    repo.call("policy", "bundle", "-o", ".").says(2, "is a folder")
