"""What a change touches."""

from __future__ import annotations

import os

import pytest

from trtops.policy.governance import parse_waiver
from trtops.workflow.changes import Affected, Change, EngineFolder, affected, parse_name_status, parse_untracked

RULES = {"spec.owner_present"}
WAIVER = """\
apiVersion: trtops/v1
kind: Waiver
rule: spec.owner_present
selector: {engine: ENGINE}
reason: it is being moved
owner: team-a
approver: team-b
granted: "2026-01-01"
expires: "2026-02-01"
"""
W = "governance/waivers/w.yaml"


def waiver(engine: str, environments: str = "") -> object:
    text = WAIVER.replace("ENGINE", f'"{engine}"{environments}')
    return parse_waiver(text.encode(), W, W, RULES)


def folders(*names: str, links: dict[str, tuple[str, ...]] | None = None) -> list[EngineFolder]:
    return [EngineFolder(name, frozenset({name}), (links or {}).get(name, ())) for name in names]


def of(*changes: Change, engines: tuple[str, ...] = ("a", "b"), **more: object) -> Affected:
    return affected(changes, folders(*engines), more.get("waivers", {}), "prod")  # type: ignore[arg-type]


def changed(*paths: str) -> list[Change]:
    return [Change("M", path) for path in paths]


@pytest.mark.parametrize(
    ("path", "engines"),
    [
        ("engines/a/engine.yaml", ["a"]),
        ("engines/a/runtime.prod.yaml", ["a"]),
        ("engines/a/samples/deep/one.npz", ["a"]),
        ("engines/a", ["a"]),  # a submodule, or a link that became a folder
        ("engines/ab/engine.yaml", []),  # begins as another's name does
        ("engines/runtime.prod.yaml", ["a", "b"]),  # shared
        ("engines/.gitattributes", ["a", "b"]),
        (".gitattributes", ["a", "b"]),
        ("trtops.toml", ["a", "b"]),
        ("sub/trtops.toml", []),
        ("policies/spec/owner_present/rule.rego", ["a", "b"]),
        ("policies/source/hosts_allowed/rule.rego", ["a", "b"]),
        ("policies/lib/text/text.rego", ["a", "b"]),
        ("policies/data/limits.yaml", ["a", "b"]),
        ("policies/data/limits.schema.json", ["a", "b"]),
        ("governance/enforcement.yaml", ["a", "b"]),
        ("policies/spec/owner_present/rule_test.rego", []),
        ("policies/README.md", []),
        ("governance/waivers/README.txt", []),
        ("policies/.hidden/x.rego", []),
        ("policies/evidence/slo_met/rule.rego", []),  # judges no spec
        ("policies/release/signer_allowed/rule.rego", []),
        ("README.md", []),
        ("docs/engines/a/engine.yaml", []),
    ],
)
def test_what_a_path_touches(path: str, engines: list[str]) -> None:
    assert list(of(*changed(path)).engines) == engines


def test_both_ends_of_a_renamed_file_are_touched() -> None:
    found = of(Change("R", "engines/b/samples.npz", "engines/a/samples.npz"))
    assert list(found.engines) == ["a", "b"]
    assert found.engines["a"] == ("engines/b/samples.npz renamed from engines/a/samples.npz",)
    assert (found.deleted, found.renamed) == ((), {})


def test_a_reason_is_given_once() -> None:
    found = of(*changed("engines/a/engine.yaml", "engines/a/runtime.yaml", "engines/a/engine.yaml"))
    assert found.engines == {"a": ("engines/a/engine.yaml changed", "engines/a/runtime.yaml changed")}


def test_policies_that_judge_later_are_told_apart() -> None:
    found = of(*changed("policies/release/signer_allowed/rule.rego", "policies/data/limits.yaml"))
    assert found.judges == ("policies/data/limits.yaml", "policies/release/signer_allowed/rule.rego")
    assert found.later == ("policies/release/signer_allowed/rule.rego",)


@pytest.mark.parametrize(
    ("versions", "engines"),
    [
        ([waiver("a")], ["a"]),
        ([waiver("a"), waiver("b")], ["a", "b"]),  # its selector moved on: the one that lost it is touched, too
        ([waiver("[ab]")], ["a", "b"]),
        ([waiver("c")], []),
        ([waiver("a", ", environments: [dev]")], []),
        ([waiver("a", ", environments: [prod]")], ["a"]),
        ([None], ["a", "b"]),  # cannot be read
        ([waiver("a"), None], ["a", "b"]),
        ([parse_waiver(b"kind: [", W, W, RULES)], ["a", "b"]),
        (None, ["a", "b"]),  # nobody looked
    ],
)
def test_a_waiver_touches_what_its_selector_takes(versions: list[object] | None, engines: list[str]) -> None:
    found = of(*changed(W), waivers={W: versions} if versions is not None else {})
    assert list(found.engines) == engines
    assert found.judges == (W,)


def test_a_waiver_takes_an_engine_by_the_name_in_its_spec_too() -> None:
    engines = [EngineFolder("folder", frozenset({"folder", "a"})), EngineFolder("b", frozenset({"b"}))]
    found = affected(changed(W), engines, {W: [waiver("a")]}, "prod")  # type: ignore[list-item]
    assert list(found.engines) == ["folder"]


@pytest.mark.parametrize("path", ["shared/runtime.yaml", "shared/runtime.yaml/x"])
def test_a_link_to_what_changed_touches_its_engine(path: str) -> None:
    engines = folders("a", "b", links={"b": ("shared/runtime.yaml",)})
    assert list(affected(changed(path), engines, {}, "prod").engines) == ["b"]
    assert affected(changed("shared/runtime.yaml.orig"), engines, {}, "prod").engines == {}


def test_a_deleted_engine_is_told() -> None:
    found = of(Change("D", "engines/c/engine.yaml"), Change("D", "engines/c/runtime.yaml"))
    assert (found.engines, found.deleted, found.renamed) == ({}, ("c",), {})


def test_an_engine_whose_spec_is_still_there_is_not_deleted() -> None:
    found = of(Change("D", "engines/a/engine.yaml"), Change("?", "engines/a/engine.yaml"))
    assert (list(found.engines), found.deleted) == (["a"], ())


def test_a_renamed_engine_is_told_and_judged_by_its_new_name() -> None:
    found = of(Change("R", "engines/a/engine.yaml", "engines/c/engine.yaml"))
    assert (list(found.engines), found.deleted, found.renamed) == (["a"], (), {"c": "a"})


def test_a_spec_moved_to_where_no_engine_is_was_deleted() -> None:
    found = of(Change("R", "attic/engine.yaml", "engines/c/engine.yaml"))
    assert (found.deleted, found.renamed) == (("c",), {})


def test_nothing_changed() -> None:
    assert of() == Affected()


def test_names_may_hold_anything_but_nul() -> None:
    raw = b'M\0engines/a b/\n"x".yaml\0R087\0engines/\xff\xfe/engine.yaml\0engines/\xc3\xbc/engine.yaml\0D\0:::x\0'
    odd = os.fsdecode(b"engines/\xff\xfe/engine.yaml")
    assert parse_name_status(raw) == (
        Change("M", 'engines/a b/\n"x".yaml'),
        Change("R", "engines/ü/engine.yaml", odd),
        Change("D", ":::x"),
    )
    assert parse_untracked(b"a b\0engines/c/\0") == (Change("?", "a b"), Change("?", "engines/c/"))
    assert parse_name_status(b"") == ()


@pytest.mark.parametrize("raw", [b"M\0engines/a", b"M", b"M\0", b"R100\0a\0", b"\0"])
def test_an_answer_cut_short_is_no_answer(raw: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        parse_name_status(raw)


def test_a_copy_touches_its_source_no_more_than_it_did() -> None:
    (change,) = parse_name_status(b"C090\0engines/a/engine.yaml\0engines/b/engine.yaml\0")
    assert change == Change("C", "engines/b/engine.yaml")
