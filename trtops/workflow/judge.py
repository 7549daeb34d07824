"""Opens what judges: the policies of the repository or of a revision, and the engine that evaluates them."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.policy.gate import Gate
    from trtops.workflow.workspace import Workspace


@contextmanager
def open_gate(workspace: Workspace, *, policies_from: str | None = None) -> Iterator[Gate]:
    """A gate for the workspace's environment, on the day that its clock tells (UTC).

    Args:
        workspace: whose settings choose the engine.
        policies_from: git revision to read policies, data, enforcement and waivers from; None: the working tree.

    Raises:
        Undecided: policies cannot be read, or the engine that the environment demands is not there.
    """
    from trtops.policy.engines import open_engine
    from trtops.policy.gate import Gate
    from trtops.policy.loader import load_policies

    settings = workspace.resolved.settings
    policies = load_policies(workspace.root, revision=policies_from)
    engine = open_engine(
        policies,
        environment=workspace.environment,
        choice=settings.engine,
        opa_url=settings.opa_url,
        opa_token=settings.opa_token,
        opa_ca=settings.opa_ca,
    )
    try:
        today = dt.datetime.fromtimestamp(workspace.clock(), tz=dt.timezone.utc).date()
        yield Gate(policies, engine, workspace.environment, today)
    finally:
        engine.close()
