"""What a backend can load here, found out in a child process: no native library ever comes into this one.

``python -m trtops.executor.examine BACKEND`` reads a target from its standard input and writes what the backend says.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from trtops.backend.port import BackendStatus
from trtops.errors import NotLoadable
from trtops.interpreter import module_command
from trtops.spec.engine import Target

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Session, Sidecar

_SECONDS: Final = 120.0
NATIVE: Final = frozenset({"tensorrt", "tensorrt_rtx"})
"""Backends whose status needs their library, and with it CUDA. The others answer from what is installed."""


class Examined:
    """A backend of other processes: it tells what can be loaded, and loads nothing here."""

    def __init__(self, name: str) -> None:
        """Take a backend's name."""
        self.name = name
        self._found: dict[str, BackendStatus] = {}

    def __repr__(self) -> str:
        """Show the name."""
        return f"Examined({self.name!r})"

    def status(self, target: Target) -> BackendStatus:
        """What the backend says of a target on this machine. Asked once; what fails is asked again."""
        key = target.model_dump_json()
        if (known := self._found.get(key)) is not None:
            return known
        command = module_command("trtops.executor.examine", self.name)
        refused = partial(BackendStatus, backend=self.name, version=None, can_build=False, can_load=False)
        try:
            done = subprocess.run(command, input=key.encode(), capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return refused(reason=f"it did not tell within {_SECONDS:g} s whether it can")
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
            return refused(reason=f"asking it ended with exit code {done.returncode}: {words[0]:.300}")
        status = BackendStatus.model_validate_json(done.stdout)
        if status.can_load:
            self._found[key] = status
        return status

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Refuse.

        Raises:
            NotLoadable: always; a worker loads it.
        """
        del sidecar
        raise NotLoadable("engines are loaded by workers, not by this process", where=str(artifact))


def main(arguments: list[str]) -> int:
    """Answer one question."""
    from trtops.backend.select import backend

    target = Target.model_validate_json(sys.stdin.buffer.read())
    status = backend(arguments[0]).status(target)
    sys.stdout.write(status.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
