"""Servers for tests of the engine opa: a real one that runs apart, and one that misbehaves on purpose."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def refusing_port() -> Iterator[int]:
    """A loopback port where nobody listens, and nobody can meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


@contextmanager
def running_opa(binary: Path, *arguments: str) -> Iterator[str]:
    """A real server that somebody else runs; gives its URL. OPA does not tell which port it got, so it is given one."""
    for _ in range(5):
        with refusing_port() as port:
            pass
        command = [str(binary), "run", "--server", f"--addr=127.0.0.1:{port}", "--skip-version-check"]
        process = subprocess.Popen(
            [*command, "--log-level=error", *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            if _serves(port, process):
                yield f"http://127.0.0.1:{port}"
                return
        finally:
            process.terminate()
            process.wait(60)
    raise AssertionError("OPA did not start")


def _serves(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it does; False: it ended, as it does where another process was given the port meanwhile."""
    until(lambda: process.poll() is not None or _listened(port), "OPA listens")
    return process.poll() is None


def _listened(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


REPLIES: dict[str, tuple[int, bytes]] = {
    "error": (500, b'{"code": "internal_error", "message": "the disk is full"}'),
    "refused": (401, b'{"code": "unauthorized", "message": "request rejected"}'),
    "not-json": (200, b"<html>a proxy's page</html>"),
    "list": (200, b"[]"),
}
ANSWERS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "short": lambda answers: answers[1:],
    "malformed": lambda answers: [{"spec.owner_present": "yes"} for _ in answers],
    "missing-rule": lambda answers: [{"spec.owner_present": [[]]} for _ in answers],
    "unknown-rule": lambda answers: [{**entry, "spec.other": [[]]} for entry in answers],
}


class FaultyServer:
    """Speaks as much of OPA's protocol as the client needs, then does what ``fault`` says when it is asked.

    Faults: those of ``REPLIES`` and ``ANSWERS``, and ``slow``, ``truncated``, ``empty`` (undefined), ``edited`` (another
    revision).
    """

    def __init__(self, revision: str, fault: str) -> None:
        self.revision = revision
        self.fault = fault
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = json.loads(self.rfile.read(length))
                outer.answer(self, request["input"].get("documents"))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, documents: list[Any] | None) -> None:
        if documents is None:  # the first question: which version, which bundle
            self._send(handler, 200, {"provenance": self._provenance(self.revision)})
            return
        if self.fault == "slow":
            self.release.wait(20)
        good: list[dict[str, Any]] = [{"spec.owner_present": [[]], "spec.workspace_bounded": [[]]} for _ in documents]
        if self.fault in REPLIES:
            status, body = REPLIES[self.fault]
            self._raw(handler, status, body)
        elif self.fault == "truncated":
            self._truncate(handler)
        elif self.fault == "empty":
            self._send(handler, 200, {"provenance": self._provenance(self.revision)})
        else:
            revision = "another" if self.fault == "edited" else self.revision
            result = ANSWERS[self.fault](good) if self.fault in ANSWERS else good
            self._send(handler, 200, {"result": result, "provenance": self._provenance(revision)})

    def _provenance(self, revision: str) -> dict[str, Any]:
        return {"version": "1.22.3", "bundles": {"policies": {"revision": revision}}}

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        self._raw(handler, status, json.dumps(body).encode())

    def _raw(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _truncate(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"result": [{"spec.owner')
        handler.close_connection = True
