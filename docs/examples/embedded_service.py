"""A service that runs a released engine in its own process and opens the secrets of its runtime config there.

::

    python embedded_service.py FOLDER ENVIRONMENT ENGINE

FOLDER holds a ``trtops.toml`` (its registry and store), ``TRTOPS_HOME`` the ``root.json`` that this machine was handed
and the identity that ``trtops secret keygen`` made. Each line of standard input is one row of numbers by spaces; the
engine's answer is printed for it.
"""

# ruff: noqa: T201, INP001
from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.executor.executor import Executor
from trtops.executor.port import Outcome, Request
from trtops.release.keys import load_root
from trtops.serve.agent import Agent
from trtops.serve.duty import Duty
from trtops.serve.snapshot import Snapshots
from trtops.workflow.secrets import identity_of
from trtops.workflow.workspace import open_workspace

if TYPE_CHECKING:
    from pydantic import SecretStr


def main(folder: Path, environment: str, engine: str) -> int:
    """Serve standard input until it ends."""
    workspace = open_workspace({"environment": environment}, start=folder)
    home = workspace.resolved.home
    duty = Duty(
        environment=environment,
        engines=(engine,),
        root=load_root(home / "root.json"),
        identity=identity_of(workspace),
    )
    executor = Executor()
    agent = Agent(duty, executor, workspace.registry(), workspace.store, Snapshots(home / "embedded"))
    agent.start()
    try:
        if not agent.settled(60) or agent.not_ready() is not None:
            print(f"{engine} does not serve: {agent.not_ready()}", file=sys.stderr)
            return 2
        for line in sys.stdin:
            connect(agent.settings(engine))
            print(*infer(executor, engine, [float(word) for word in line.split()]), flush=True)
    finally:
        agent.close()
        executor.close(drain=10)
    return 0


def connect(settings: dict[str, Any] | None) -> None:
    """Use a secret: where it is needed, and no earlier. A value that was sealed anew is there without a restart."""
    if settings is None:
        print("no identity: secrets stay references", file=sys.stderr)
        return
    database = settings["database"]
    password: SecretStr = database["password"]
    # What is logged or printed by mistake is ``**********``; the value itself is asked for by name.
    print(f"{database['url']} with {password}, {len(password.get_secret_value())} characters", file=sys.stderr)


def infer(executor: Executor, engine: str, row: list[float]) -> list[float]:
    """One row through the engine: batched with all others that wait, in this process."""
    (info,) = (one for one in executor.engines() if one.name == engine)
    (tensor,) = info.inputs
    answer: Future[Outcome] = Future()
    inputs = {tensor.name: np.asarray([row], dtype=tensor.dtype)}
    executor.submit(engine, Request(inputs=inputs, rows=1), answer.set_result)
    outcome = answer.result(60)
    if outcome.error is not None:
        raise outcome.error
    (output,) = outcome.outputs.values()
    return [float(number) for number in output[0]]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
