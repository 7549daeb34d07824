"""The pages of the rules: fresh, complete, and true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trtops.policy.loader import load_policies
from trtops.policy.pages import FOLDER, index, page, pages, write

if TYPE_CHECKING:
    from trtops.policy.port import PolicySet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return load_policies(ROOT)


def test_pages_are_fresh(policies: PolicySet) -> None:
    wanted = pages(policies)
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / FOLDER).rglob("*.md")}
    assert found == wanted, "run `trtops policy docs`"


def test_every_rule_has_its_page_where_findings_link_to(policies: PolicySet) -> None:
    assert {rule.docs for rule in policies.rules} == set(pages(policies)) - {f"{FOLDER}/README.md"}


def test_a_page_answers_four_questions(policies: PolicySet) -> None:
    for rule in policies.rules:
        text = page(rule, policies)
        sections = re.split(r"^## ", text, flags=re.MULTILINE)
        assert [section.partition("\n")[0] for section in sections[1:]] == ["Avoid", "Prefer", "Why", "Configure"]
        assert all(section.partition("\n")[2].strip() for section in sections[1:])
        assert rule.metadata.remediation in text
        assert rule.metadata.description in text


def test_links_of_pages_lead_somewhere(policies: PolicySet) -> None:
    for path, text in pages(policies).items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / path).parent.joinpath(target).resolve().exists(), f"{path}: {target}"


def test_a_page_names_the_values_of_its_messages_and_the_limits_it_reads(policies: PolicySet) -> None:
    text = page(policies.rule("spec.queue_bounded"), policies)
    assert "- the queue takes *size* requests, tier *tier* allows *limit*" in text
    assert "`queue_delay_ms` of each tier, `queue_size` of each tier, `queue_timeout_ms` of each tier" in text
    assert "policies/data/gpus.yaml" in page(policies.rule("spec.gpu_allowed"), policies)
    assert "policies/data" not in page(policies.rule("spec.owner_present"), policies)
    assert "`harmless_keys`" in page(policies.rule("release.secrets_sealed"), policies)


def test_the_index_lists_every_rule_once(policies: PolicySet) -> None:
    text = index(policies)
    for rule in policies.rules:
        assert text.count(f"({rule.stage}/{rule.name}.md)") == 1


def test_pages_are_written_and_those_of_lost_rules_removed(tmp_path: Path) -> None:
    for folder in ("policies", "governance"):
        for source in (ROOT / folder).rglob("*"):
            if source.is_file():
                copy = tmp_path / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(source.read_bytes())
    lost = tmp_path / FOLDER / "spec" / "gone.md"
    lost.parent.mkdir(parents=True)
    lost.write_text("<!-- Written by `trtops policy docs` from a rule that is gone -->", encoding="utf-8")
    mine = lost.with_name("mine.md")
    mine.write_text("by hand", encoding="utf-8")
    policies = load_policies(tmp_path)
    changed, count = write(policies, tmp_path)
    assert not lost.exists()
    assert set(changed) == {*pages(policies), f"{FOLDER}/spec/gone.md"}
    assert count == len(pages(policies))
    assert mine.read_text(encoding="utf-8") == "by hand"
    assert all((tmp_path / path).read_bytes() == (ROOT / path).read_bytes() for path in pages(policies))
    assert write(policies, tmp_path) == ((), count)
