"""The list of allowed built-ins against the real engines."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.policies import opa_binary
from trtops.policy.builtins import ALLOWED, BANNED, banned

pytestmark = pytest.mark.service


def capabilities() -> dict[str, int]:
    done = subprocess.run([opa_binary(), "capabilities", "--current"], capture_output=True, check=True)
    return {entry["name"]: len(entry["decl"].get("args") or ()) for entry in json.loads(done.stdout)["builtins"]}


def test_opa_has_every_allowed_builtin_with_its_arguments() -> None:
    known = capabilities()
    assert {name: known.get(name) for name in ALLOWED} == dict(ALLOWED)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_regorus_has_every_allowed_builtin(name: str) -> None:
    import regorus

    engine = regorus.Engine()
    arguments = ", ".join(["null"] * ALLOWED[name])
    engine.add_policy("a.rego", f"package a\n\nx := y if {{\n\ty := {name}({arguments})\n}}\n")
    said = ""
    try:
        engine.eval_rule_as_json("data.a.x")
    except RuntimeError as error:  # null is no argument for most of them
        said = str(error)
    assert "could not find function" not in said


def test_nothing_is_allowed_and_banned() -> None:
    assert [name for name in ALLOWED if banned(name)] == []


def test_every_ban_names_something_real() -> None:
    known = capabilities()
    for entry in BANNED:
        assert any(name == entry or name.startswith(entry) for name in known), entry
