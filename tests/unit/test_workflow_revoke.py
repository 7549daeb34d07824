"""What is told before a key is revoked: as much as can be seen, and what could not be. Telling prevents nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import trtops.workflow.registry as opening
from tests.support.repository import make_repository
from trtops.registry.memory import MemoryRegistry
from trtops.settings import Settings, resolve
from trtops.workflow.revoke import consequences, revoke
from trtops.workflow.trust import init
from trtops.workflow.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.registry.port import Registry
    from trtops.settings import Resolved


class _Hostile(MemoryRegistry):
    """Holds what nobody has thought of: each look at it ends in an error that is none of trtops."""

    def names(self, prefix: str = "") -> tuple[str, ...]:
        raise ValueError(f"9007199254740993 below {prefix!r}")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A repository with a root that can be followed; who writes to dev's registry is hostile."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TRTOPS_{name.upper()}", raising=False)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "home"))
    made = make_repository(tmp_path / "repo", engine=False)

    def opened(_: Resolved, environment: str) -> Registry:
        return _Hostile() if environment == "dev" else MemoryRegistry()

    monkeypatch.setattr(opening, "open_registry", opened)
    found = Workspace(resolve(made.root, {"environment": "prod"}))
    init(found)
    return found


def _channel(workspace: Workspace) -> str:
    return workspace.keys.root().roles["channel"].keys[0]


def test_denial_of_service_one_environment_s_writer_keeps_no_other_s_key_from_being_revoked(
    workspace: Workspace,
) -> None:
    key = _channel(workspace)
    found = consequences(workspace, key)
    ((environment, error),) = found.unseen
    assert environment == "dev"
    assert "ValueError: 9007199254740993" in error.what
    assert key in revoke(workspace, key).root.revoked


def test_where_the_policies_cannot_be_read_the_other_environments_were_not_seen(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / "policies")
    ((what, error),) = consequences(workspace, _channel(workspace)).unseen
    assert what == "every other environment"
    assert error.where or error.what
