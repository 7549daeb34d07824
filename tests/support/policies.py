"""Small policy repositories for tests, written to a folder."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

ENFORCEMENT = """\
apiVersion: trtops/v1
kind: Enforcement
level: soft
environments:
  local: {engine: any, waivers: any}
  prod: {engine: opa}
"""

METADATA = """\
# METADATA
# scope: package
# title: Workspace is bounded
# description: A builder with no bound takes the whole card.
# custom:
#   severity: deny
#   remediation: Set memory.workspace.
#   since: "0.1"
"""

WORKSPACE = """\
findings contains finding if {
	input.document.memory.workspace > data.limits.workspace
	finding := {
		"message": sprintf("workspace is %v", [input.document.memory.workspace]),
		"path": ["memory", "workspace"],
	}
}
"""

OWNER = """\
findings contains finding if {
	not input.document.owner
	finding := {"message": "no owner", "path": ["owner"]}
}
"""

LIMITS = "workspace: 100\n"
LIMITS_SCHEMA = """\
{"type": "object", "additionalProperties": false, "required": ["workspace"],
 "properties": {"workspace": {"type": "integer", "minimum": 1}}}
"""


def rego(stage: str, name: str, body: str, *, metadata: str = METADATA) -> str:
    """A rule's file."""
    return f"{metadata}package trtops.{stage}.{name}\n\n{textwrap.dedent(body)}"


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def write_rule(root: Path, body: str, *, stage: str = "spec", name: str = "probe", metadata: str = METADATA) -> Path:
    """Write one rule."""
    return write(root, {f"policies/{stage}/{name}/rule.rego": rego(stage, name, body, metadata=metadata)})


def repository(root: Path, rules: dict[str, str] | None = None, *, enforcement: str = ENFORCEMENT) -> Path:
    """A repository with two rules of the stage spec (or those given), one data file, and enforcement levels."""
    bodies = {"workspace_bounded": WORKSPACE, "owner_present": OWNER} if rules is None else rules
    for name, body in bodies.items():
        write_rule(root, body, name=name)
    return write(
        root,
        {
            "governance/enforcement.yaml": enforcement,
            "policies/data/limits.yaml": LIMITS,
            "policies/data/limits.schema.json": LIMITS_SCHEMA,
        },
    )


def document(**values: Any) -> dict[str, Any]:
    """An input of the stage spec, as far as these rules look."""
    return {"schema": "trtops.spec/v1", "environment": "local", "engine": "x", "tier": "bronze", "document": values}


def opa_binary() -> Path:
    """The OPA binary; the test is skipped where there is none, and fails there in CI."""
    found = os.environ.get("TRTOPS_OPA") or shutil.which("opa")
    candidates = [Path(found)] if found else []
    candidates.append(Path.home() / "go" / "bin" / "opa")
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    reason = "no OPA: go install github.com/open-policy-agent/opa@v1.22.3, or set TRTOPS_OPA"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
