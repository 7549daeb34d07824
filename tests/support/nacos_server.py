"""A real Nacos 3.1 for tests: one a session, on free loopback ports, in memory where there is some."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.registry.nacos.http import Credentials, NacosHttp
from trtops.registry.nacos.loop import LoopThread
from trtops.registry.nacos.place import GROUP, SENTINEL, Place
from trtops.registry.nacos.registry import NacosRegistry
from trtops.registry.nacos.setup import Setup, user_name

if TYPE_CHECKING:
    from typing import Any

    from trtops.registry.nacos.http import Answer

SCRIPTS = Path(__file__).parents[1] / "contract" / "nacos"
ADMINISTRATOR = Credentials("nacos", "administrator-of-tests")
_OFFSETS = (0, 1000, 1001)
_STARTS = 4
_GUARD = """
while kill -0 "$1" && kill -0 "$2"; do sleep 2; done 2>/dev/null
kill -CONT "$2" && kill "$2"
"""
"""Ends a server whose tests were killed: nobody else would."""


def why_not() -> str | None:
    """Why no server can be started here; None if it can."""
    missing = [tool for tool in ("java", "javac", "mvn", "curl") if shutil.which(tool) is None]
    return f"Nacos needs {', '.join(missing)}" if missing else None


def free_base() -> int:
    """A port that is free, with the two that Nacos derives from it."""
    for _ in range(200):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            base = int(probe.getsockname()[1])
        if base + max(_OFFSETS) < 65_536 and all(_free(base + offset) for offset in _OFFSETS):
            return base
    raise AssertionError("no three ports are free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def password_of(user: str) -> str:
    """Passwords of the users that tests make."""
    return f"password-of-{user}"


@dataclass
class NacosServer:
    """A server process. Environments are made on demand."""

    home: Path
    port: int
    properties: str = ""
    scheme: str = "http"
    pid: int = 0
    ca: Path | None = None
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _made: set[str] = field(default_factory=set)
    _asking: tuple[LoopThread, NacosHttp] | None = None
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Place:
        return Place((f"127.0.0.1:{self.port}",), tls=self.scheme == "https")

    @property
    def url(self) -> str:
        return str(self.place)

    def start(self) -> None:
        work = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtops" / "nacos"
        environment = {
            **os.environ,
            "NACOS_WORK": os.environ.get("NACOS_WORK", str(work)),
            "NACOS_HEAP": "320m",
            "NACOS_WAIT": "110",
            "NACOS_SCHEME": self.scheme,
            "NACOS_PROPERTIES": self.properties,
        }
        command = [str(SCRIPTS / "start.sh"), str(self.port), str(self.home)]
        for _ in range(_STARTS):  # on a machine that is busy Derby gives itself too little time
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
            if done.returncode == 0 or "Login timeout exceeded" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        self.pid = int(done.stdout.split()[-1])
        self._guard = subprocess.Popen(["sh", "-c", _GUARD, "guard", str(os.getpid()), str(self.pid)])

    def stop(self) -> None:
        if self._asking is not None:
            self._asking[0].stop(self._asking[1].close)
            self._asking = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None
        if self.pid:
            self.resume()
            subprocess.run([str(SCRIPTS / "stop.sh"), str(self.pid)], check=True, capture_output=True, timeout=60)
            self.pid = 0

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def make_administrator(self) -> None:
        import ssl
        import urllib.request

        trust = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        url = f"{self.place.urls()[0]}/nacos/v3/auth/user/admin"
        body = f"password={ADMINISTRATOR.password}".encode()
        with urllib.request.urlopen(url, data=body, timeout=20, context=trust) as answer:  # noqa: S310 - loopback
            assert answer.status == 200

    def environment(self, name: str | None = None) -> str:
        """A new environment, set up; gives its name."""
        chosen = name or f"test-{next(self._numbers)}"
        Setup(self.place, chosen, ADMINISTRATOR).apply(password_of, lambda _: None)
        return chosen

    def emptied(self, name: str = "contract") -> str:
        """An environment without documents, made once: users cost a second each."""
        if name not in self._made:
            self._made.add(self.environment(name))
        listed = {"pageNo": "1", "pageSize": "500", "namespaceId": name, "groupName": GROUP}
        answer = self.ask("GET", "/v3/admin/cs/config/list", {**listed, "dataId": "*", "search": "blur"})
        for item in answer.data["pageItems"]:
            if item["dataId"] != SENTINEL:
                self.remove(name, item["dataId"])
        return name

    def remove(self, environment: str, identifier: str) -> None:
        """Delete a configuration, as an administrator or an attacker would."""
        fields = {"namespaceId": environment, "groupName": GROUP, "dataId": identifier}
        assert self.ask("DELETE", "/v3/admin/cs/config", fields).ok

    def put(self, environment: str, identifier: str, content: str) -> None:
        """Write a configuration past every rule."""
        fields = {"namespaceId": environment, "groupName": GROUP, "dataId": identifier, "content": content}
        assert self.ask("POST", "/v3/admin/cs/config", fields).ok

    def ask(self, method: str, path: str, fields: dict[str, str]) -> Answer:
        """One call as the administrator. A login costs a tenth of a second, so there is one until the server stops."""
        if self._asking is None:
            self._asking = LoopThread("nacos-administrator"), NacosHttp(self.place, ADMINISTRATOR, timeout=20)
        loop, http = self._asking
        return loop.call(http.call(method, path, fields), 60)

    def credentials(self, environment: str, role: str = "publisher") -> Credentials:
        user = user_name(environment, role)
        return Credentials(user, password_of(user))

    def registry(self, environment: str, role: str = "publisher", **changes: Any) -> NacosRegistry:
        return NacosRegistry(self.place, environment, self.credentials(environment, role), **changes)


def memory_folder() -> Path:
    """A new folder, in memory where there is some: Derby flushes a lot, and a slow disk proves nothing more."""
    there = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="trtops-nacos-", dir=there if os.access(there, os.W_OK) else None))
