"""What is where it must be, names what it must name, and is known; a rule never vanishes in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.policies import ENFORCEMENT, METADATA, OWNER, rego, repository, write, write_rule
from trtops.errors import Undecided
from trtops.policy.loader import load_policies
from trtops.policy.source import read_folder


def refused(root: Path, *words: str) -> Undecided:
    with pytest.raises(Undecided) as caught:
        load_policies(root)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert caught.value.fix
    return caught.value


def test_a_whole_repository(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    assert [rule.id for rule in policies.rules] == ["spec.owner_present", "spec.workspace_bounded"]
    assert policies.data == {"limits": {"workspace": 100}}
    assert not policies.merged
    rule = policies.rule("spec.workspace_bounded")
    assert rule.metadata.title == "Workspace is bounded"
    assert rule.metadata.severity == "deny"
    assert rule.location.line == 11
    assert [found.id for found in policies.of_stage("spec")] == [found.id for found in policies.rules]


def test_nothing_is_a_reason_to_pass(tmp_path: Path) -> None:
    refused(tmp_path, "no folder of policies")
    (tmp_path / "policies").mkdir()
    refused(tmp_path, "governance/enforcement.yaml")
    write(tmp_path, {"governance/enforcement.yaml": ENFORCEMENT})
    with pytest.raises(Undecided, match="no rule for the stage"):
        load_policies(tmp_path).of_stage("spec")


def test_the_digest_is_of_what_decides(tmp_path: Path) -> None:
    root = repository(tmp_path)
    before = load_policies(root).digest
    write(root, {"policies/spec/owner_present/rule_test.rego": "package trtops.spec.owner_present_test\n"})
    write(root, {"policies/README.md": "words", "governance/waivers/README.md": "words"})
    assert load_policies(root).digest == before
    seen = {before}
    for path in (
        "policies/spec/owner_present/rule.rego",
        "policies/data/limits.yaml",
        "policies/data/limits.schema.json",
        "governance/enforcement.yaml",
    ):
        (root / path).write_text((root / path).read_text() + " \n")
        seen.add(load_policies(root).digest)
    assert len(seen) == 5


def test_the_digest_is_of_names_too(tmp_path: Path) -> None:
    one = load_policies(repository(tmp_path / "a", {"one": OWNER})).digest
    assert load_policies(repository(tmp_path / "b", {"two": OWNER})).digest != one


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("policies/spec/owner_present/rule_v2.rego", "nothing would evaluate"),
        ("policies/spec/owner.rego", "nothing would evaluate"),
        ("policies/owner.rego", "nothing would evaluate"),
        ("policies/spec/a/b/rule.rego", "nothing would evaluate"),
        ("policies/specs/owner/rule.rego", "unknown stage 'specs'"),
        ("policies/spec/owner_present/rule.rego.bak", "nothing would evaluate"),
        ("policies/spec/Owner/rule.rego", "no name of a rule"),
        ("policies/spec/owner-two/rule.rego", "no name of a rule"),
        ("policies/lib/sizes/other.rego", "nothing would evaluate"),
        ("policies/data/limits.json", "not a data file"),
        ("policies/data/Limits.yaml", "not a data file"),
        ("policies/data/trtops.yaml", "not a data file"),
        ("policies/data/other.schema.json", "no data file"),
        ("policies/data/other.yaml", "has no schema"),
        ("governance/waivers/a.yml", "not a waiver"),
        ("governance/waivers/deep/a.yaml", "not a waiver"),
    ],
)
def test_a_file_in_the_wrong_place(tmp_path: Path, path: str, words: str) -> None:
    write(repository(tmp_path), {path: "a: 1\n"})
    error = refused(tmp_path, words)
    assert path.rpartition("/")[0] in str(error.where)


@pytest.mark.parametrize("character", ["\u202e", "\u2028", "\u2066", "\x00", "\x85"])
def test_a_rule_that_reads_otherwise_than_it_is_parsed(tmp_path: Path, character: str) -> None:
    root = repository(tmp_path, {"owner_present": f"{OWNER}# looks{character}harmless\n"})
    error = refused(root, "is not shown", f"U+{ord(character):04X}")
    assert str(error.where).endswith("rule.rego:15")


def test_a_rule_that_lost_its_file(tmp_path: Path) -> None:
    root = repository(tmp_path)
    rule = root / "policies/spec/owner_present/rule.rego"
    rule.unlink()
    refused(root, "policies/spec/owner_present", "rule.rego")
    write(root, {"policies/spec/owner_present/rule_test.rego": "package trtops.spec.owner_present_test\n"})
    refused(root, "spec.owner_present", "no rule.rego")


@pytest.mark.parametrize(
    ("package", "line"),
    [("trtops.spec.other", 9), ("trtops.release.owner_present", 9), ("spec.owner_present", 9), ("trtops.spec", 9)],
)
def test_a_package_that_is_not_its_folder(tmp_path: Path, package: str, line: int) -> None:
    root = repository(tmp_path)
    write(root, {"policies/spec/owner_present/rule.rego": f"{METADATA}package {package}\n\n{OWNER}"})
    error = refused(root, "trtops.spec.owner_present", package)
    assert str(error.where).endswith(f"owner_present/rule.rego:{line}")


def test_a_test_of_another_package(tmp_path: Path) -> None:
    write(repository(tmp_path), {"policies/spec/owner_present/rule_test.rego": "package trtops.spec.owner_present\n"})
    refused(tmp_path, "trtops.spec.owner_present_test")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("# METADATA\n", "# METADATA\n# title: one\n\n# METADATA\n", 4, "two"),
        ("# METADATA\n", "# Metadata\n", 1, "no `# METADATA` block"),
        ("#   severity: deny\n", "#   severity: denied\n", 6, "'denied'"),
        ("#   severity: deny\n", "", 6, "missing"),
        ("# title: Workspace is bounded\n", "", 1, "title"),
        ("# description: A builder with no bound takes the whole card.\n", "# description: ''\n", 4, "description"),
        ("#   remediation: Set memory.workspace.\n", "", 6, "remediation"),
        ('#   since: "0.1"\n', "#   since: 1\n", 8, "since"),
        ('#   since: "0.1"\n', '#   since: "0.1"\n#   level: strict\n', 9, "'strict'"),
        ("# scope: package\n", "# scope: rule\n", 2, "not of the package"),
        ("# scope: package\n", "# scope: package\n# owner: me\n", 3, "owner"),
        ("# custom:\n", "# custom:\n#   levle: soft\n", 6, "levle"),
        ("# scope: package\n", "# scope: [package\n", 3, "cannot be read"),
        ('#   since: "0.1"\n', '#   since: "0.1"\n\n', 9, "does not reach the package"),
    ],
)
def test_metadata_that_is_wrong(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in METADATA
    write_rule(repository(tmp_path, {}), OWNER, metadata=METADATA.replace(old, new))
    error = refused(tmp_path, words)
    assert f"policies/spec/probe/rule.rego:{line}" in str(error.where), error


def test_the_level_of_a_rule_is_read(tmp_path: Path) -> None:
    metadata = METADATA.replace('"0.1"\n', '"0.1"\n#   level: hard\n')
    root = write_rule(repository(tmp_path, {}), OWNER, metadata=metadata)
    assert load_policies(root).rule("spec.probe").metadata.level == "hard"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("workspace: 0\n", 1, "minimum"),
        ("workspace: many\n", 1, "integer"),
        ("other: 1\n", 1, "other"),
        ("workspace: 1\nworkspace: 2\n", 2, "twice"),
        ("- 1\n", 1, "list"),
        ("", 1, "empty"),
    ],
)
def test_data_that_does_not_meet_its_schema(tmp_path: Path, text: str, line: int, words: str) -> None:
    error = refused(write(repository(tmp_path), {"policies/data/limits.yaml": text}), words)
    assert f"policies/data/limits.yaml:{line}" in str(error.where)


@pytest.mark.parametrize("schema", ["{", "[]", "{}", '{"type": "nonsense"}', "true"])
def test_a_schema_that_is_none(tmp_path: Path, schema: str) -> None:
    error = refused(write(repository(tmp_path), {"policies/data/limits.schema.json": schema}), "schema")
    assert "limits.schema.json" in str(error.where)


@pytest.mark.parametrize("level", ["rules: {spec.gone: soft}", "environments: {local: {rules: {spec.gone: soft}}}"])
def test_a_level_of_a_rule_that_is_gone(tmp_path: Path, level: str) -> None:
    head = "apiVersion: trtops/v1\nkind: Enforcement\nlevel: soft\n"
    rest = "" if "environments" in level else "\nenvironments: {local: {}}"
    error = refused(repository(tmp_path, enforcement=f"{head}{level}{rest}\n"), "unknown rule 'spec.gone'")
    assert "governance/enforcement.yaml:4" in str(error.where)


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    text = ENFORCEMENT + "rules: {spec.owner_presnt: soft}\n"
    assert "spec.owner_present" in str(refused(repository(tmp_path, enforcement=text)).fix)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENFORCEMENT.replace("level: soft", "level: strict"), "level"),
        (ENFORCEMENT.replace("engine: opa", "engine: regorus"), "environments.prod.engine"),
        (ENFORCEMENT.replace("kind: Enforcement", "kind: Waiver"), "kind"),
        (ENFORCEMENT + "levle: soft\n", "did you mean `level`"),
        ("kind: Enforcement\n", "missing"),
        (ENFORCEMENT.partition("environments")[0] + "environments: {}\n", "environments"),
        (":\n- [", "enforcement.yaml"),
    ],
)
def test_enforcement_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    refused(repository(tmp_path, enforcement=text), words, "enforcement.yaml")


def test_a_waiver_of_an_environment_that_is_none(tmp_path: Path) -> None:
    text = (
        "apiVersion: trtops/v1\nkind: Waiver\nrule: spec.owner_present\nselector: {engine: x, environments: [prd]}\n"
        "reason: r\nowner: a\napprover: b\ngranted: 2026-01-01\nexpires: 2026-01-02\n"
    )
    root = write(repository(tmp_path), {"governance/waivers/a.yaml": text})
    error = refused(root, "unknown environment 'prd'; did you mean 'prod'?")
    assert "governance/waivers/a.yaml:4" in str(error.where)
    write(root, {"governance/waivers/a.yaml": text.replace("[prd]", "[prod]")})
    assert load_policies(root).waivers[0].defect is None


def test_a_waiver_of_a_rule_that_is_gone(tmp_path: Path) -> None:
    text = (
        "apiVersion: trtops/v1\nkind: Waiver\nrule: spec.gone\nselector: {engine: x}\nreason: r\nowner: a\n"
        "approver: b\ngranted: 2026-01-01\nexpires: 2026-01-02\n"
    )
    error = refused(write(repository(tmp_path), {"governance/waivers/a.yaml": text}), "unknown rule 'spec.gone'")
    assert "governance/waivers/a.yaml:3" in str(error.where)


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "policies/spec/owner_present/rule.rego").write_bytes(METADATA.encode() + b"# \xff\n")
    refused(root, "not UTF-8", "rule.rego:9")


def test_a_link_is_no_policy(tmp_path: Path) -> None:
    root = repository(tmp_path / "r")
    rule = root / "policies/spec/owner_present/rule.rego"
    rule.rename(tmp_path / "elsewhere.rego")
    rule.symlink_to(tmp_path / "elsewhere.rego")
    refused(root, "not a plain file")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    write(repository(tmp_path), {"policies/spec/owner_present/rule.rego": "#" * (1 << 20) + "##"})
    refused(tmp_path, "over 1048576 bytes")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "policies/spec/owner_present/rule.rego").chmod(0)
    refused(root, "cannot be read")


def test_policies_are_read_at_one_moment(tmp_path: Path) -> None:
    """A file that changes while the files are read is read again; one that never holds still is an error."""
    root = repository(tmp_path)
    rule = root / "policies/spec/owner_present/rule.rego"
    texts = iter(["# two\n", "# three\n"])

    def once() -> None:
        text = next(texts, None)
        if text is not None:
            rule.write_text(text)

    tree = read_folder(root, after_read=once)
    assert tree.files["policies/spec/owner_present/rule.rego"] == b"# three\n"

    def always() -> None:
        rule.write_text(rule.read_text() + "#\n")

    with pytest.raises(Undecided, match="change while they are read"):
        read_folder(root, after_read=always)


@pytest.mark.parametrize("what", ["added", "removed", "replaced"])
def test_files_that_come_and_go_while_reading(tmp_path: Path, what: str) -> None:
    root = repository(tmp_path)
    rule = root / "policies/spec/owner_present/rule.rego"
    done: list[int] = []

    def change() -> None:
        if done:
            return
        done.append(1)
        if what == "added":
            write_rule(root, OWNER, name="later")
        elif what == "removed":
            rule.unlink()
            rule.parent.rmdir()
        else:  # same size, same name, another file
            text = rule.read_text().replace("no owner", "no 0wner")
            (root / "new").write_text(text)
            (root / "new").replace(rule)

    files = read_folder(root, after_read=change).files
    assert ("policies/spec/later/rule.rego" in files) == (what == "added")
    assert ("policies/spec/owner_present/rule.rego" in files) == (what != "removed")
    if what == "replaced":
        assert b"no 0wner" in files["policies/spec/owner_present/rule.rego"]


def test_a_set_does_not_follow_later_edits(tmp_path: Path) -> None:
    root = repository(tmp_path)
    policies = load_policies(root)
    write(root, {"policies/spec/owner_present/rule.rego": rego("spec", "owner_present", "findings := set()")})
    assert "findings contains" in policies.rule("spec.owner_present").file.text


def test_messages_name_files_from_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    write(root, {"policies/spec/x.rego": ""})
    monkeypatch.chdir(root)
    assert str(refused(Path()).where) == "policies/spec/x.rego"
    (root / "engines").mkdir()
    monkeypatch.chdir(root / "engines")
    assert str(refused(Path("..")).where) == "../policies/spec/x.rego"
