"""A server process for tests: real ports, agent, registry folder, store and keys; engines that add up rows.

python -m tests.support.serve_main HOME PORT [changes of the settings, as JSON]

``cost`` among them: seconds that a batch takes. While there is a file HOME/held, no batch is done.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.support.sessions import FunctionSession
from trtops.backend.port import BackendStatus
from trtops.errors import TrtopsError
from trtops.registry.file import FileRegistry
from trtops.release.keys import load_root
from trtops.serve.duty import Duty
from trtops.serve.server import ServeSettings, run
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping


class Adder:
    """A backend whose engines add their artifact's number to the sum of each row."""

    name = "onnxruntime"

    def __init__(self, cost: float, held: Path) -> None:
        self.cost = cost
        self.held = held

    def status(self, target: Any) -> BackendStatus:
        can = target.backend == self.name
        return BackendStatus(backend=self.name, version="1", can_build=False, can_load=can, reason="not here")

    def load(self, path: Path, side: Any) -> FunctionSession:
        number = float(path.read_text().split()[1])

        def add(inputs: Mapping[str, Any]) -> dict[str, Any]:
            time.sleep(self.cost)
            while self.held.exists():
                time.sleep(0.01)
            return {"y": inputs["x"].sum(axis=1, keepdims=True) + number}

        return FunctionSession(side.inputs, side.outputs, add)


def main(home: Path, port: int, changes: dict[str, Any]) -> int:
    backend = Adder(changes.pop("cost", 0.0), home / "held")
    duty = Duty("dev", ("cls",), load_root(home / "root.json"), poll=0.2)
    settings = ServeSettings(duty, home / "agent", port=port, control_port=0, ready_json=True, drain=20, **changes)
    with mock.patch("trtops.backend.select.backend", return_value=backend):
        registry = FileRegistry(home / "registry", "dev", interval=0.05)
        return run(settings, registry=registry, store=Store(home / "store"))


if __name__ == "__main__":
    try:
        given = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
        sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), given))
    except TrtopsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
