"""An OPA server of our own: started on a free loopback port with one bundle and a token, stopped by its pid."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import Undecided
from trtops.policy.bundle import bundle

if TYPE_CHECKING:
    from trtops.policy.port import PolicySet

_ATTEMPTS = 5
_GRACE = 5.0
_FIX = "check that it is OPA 1.x, or give a server with --opa-url"
_ERROR = re.compile(r"(?P<file>policies/[^\s:]+):(?P<row>\d+): (?P<message>rego_\w+: [^\n\"]*)")
_AUTHORIZATION = """package system.authz

default allow := false

allow if input.identity == "{token}"
"""


class OpaProcess:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        token: that it demands.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str], port: int, token: str
    ) -> None:
        """Made by :meth:`start`."""
        self._process = process
        self._folder = folder
        # A caller that forgets to stop it, or is ended by an error, leaves no server behind.
        self._finalizer = weakref.finalize(self, _stop, process, folder)
        self.port = port
        self.token = token

    def __repr__(self) -> str:
        """Show the pid and whether it runs."""
        return f"OpaProcess(pid={self.pid}, port={self.port}, running={self._process.poll() is None})"

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    @classmethod
    def start(cls, policies: PolicySet, binary: Path, *, timeout: float) -> OpaProcess:
        """Start it, and wait until it answers.

        Raises:
            Undecided: it ends, or does not answer in time; names the rule and its line if it refuses one.
        """
        packed = bundle(policies)
        deadline = time.monotonic() + timeout
        for _ in range(_ATTEMPTS):
            server = cls._spawn(packed, binary)
            try:
                if server._wait(policies, binary, deadline):  # noqa: SLF001 - its own class
                    return server
            except BaseException:
                server.stop()
                raise
            server.stop()
        raise Undecided("no free port for the OPA server", where=str(binary), fix="try again, or use --opa-url")

    @classmethod
    def _spawn(cls, packed: bytes, binary: Path) -> OpaProcess:
        folder = tempfile.TemporaryDirectory(prefix="trtops-opa-")  # mode 0700: the token is in it
        root = Path(folder.name)
        token = secrets.token_urlsafe(32)
        (root / "policies.tar.gz").write_bytes(packed)
        authorization = root / "authorization"
        authorization.mkdir()
        (authorization / ".manifest").write_text('{"roots": ["system"], "rego_version": 1}')
        (authorization / "authz.rego").write_text(_AUTHORIZATION.format(token=token))
        port = _free_port()
        command = [
            str(binary), "run", "--server", f"--addr=127.0.0.1:{port}", "--authentication=token",
            "--authorization=basic", "--skip-version-check", "--log-level=error", "--shutdown-grace-period=1",
            "--bundle", str(root / "policies.tar.gz"), str(authorization),
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPA_")}
        try:
            with (root / "log").open("wb") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=root, env=environment
                )
        except OSError as error:
            folder.cleanup()
            raise Undecided(f"OPA cannot be started: {error.strerror}", where=str(binary), fix=_FIX) from error
        return cls(process, folder, port, token)

    def _wait(self, policies: PolicySet, binary: Path, deadline: float) -> bool:
        """Whether it answers; False if somebody else took its port."""
        while self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return self._process.poll() is None
            except OSError:
                pass
            if time.monotonic() >= deadline:
                raise Undecided("OPA did not start in time", where=str(binary), fix=_FIX)
            time.sleep(0.005)
        log = (Path(self._folder.name) / "log").read_text("utf-8", "replace")
        if "address already in use" in log:
            return False
        raise _refused(log, policies, binary)

    def stop(self) -> None:
        """Stop it: SIGTERM, after a grace SIGKILL. Idempotent."""
        self._finalizer()


def _stop(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    folder.cleanup()


def _refused(log: str, policies: PolicySet, binary: Path) -> Undecided:
    from trtops.policy.opa import describe

    files = {file.path: file for file in policies.libraries}
    files |= {rule.file.path: rule.file for rule in policies.rules}
    for match in _ERROR.finditer(log.replace("\\n", "\n")):
        found = describe(files, match["file"], int(match["row"]), 0, match["message"])
        if found is not None:
            return found
    lines = [line for line in log.splitlines() if line.strip()]
    return Undecided(
        f"OPA ended at once: {lines[-1][:300] if lines else 'it said nothing'}", where=str(binary), fix=_FIX
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
