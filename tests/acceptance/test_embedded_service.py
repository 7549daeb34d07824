"""``docs/examples/embedded_service.py``, run as its reader would: an engine and its secrets in a service's own process."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np
import pytest

from tests.support.repository import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.repository import Repository

pytestmark = pytest.mark.service

EXAMPLE = CHECKOUT / "docs" / "examples" / "embedded_service.py"
RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
database: {url: "postgresql://db/ocr", password: "secret:db/password"}
"""
ROW = [1.0, 2.0, 3.0, 4.0]


@contextmanager
def _service(repo: Repository, errors: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE), str(repo.root), "local", "tiny"]
    with (
        errors.open("wb") as told,
        subprocess.Popen(
            command, env=repo.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _ask(process: subprocess.Popen[str]) -> list[float]:
    to: IO[str] | None = process.stdin
    back: IO[str] | None = process.stdout
    assert to is not None
    assert back is not None
    print(*ROW, file=to, flush=True)
    return [float(number) for number in back.readline().split()]


def _seal(repo: Repository, value: str) -> None:
    repo.call("secret", "seal", "tiny", "db/password", stdin=value).says(0)


def test_a_service_runs_an_engine_and_opens_its_secrets_in_its_own_process(repo: Repository, folder: Path) -> None:
    (repo.engine / "runtime.yaml").write_text(RUNTIME)
    repo.call("secret", "keygen").says(0)
    _seal(repo, "correct-horse")
    repo.call("ship", "tiny").says(0)
    errors = folder / "errors.txt"
    with _service(repo, errors) as process:
        weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 10 - 0.5
        wanted = np.maximum(np.array(ROW, np.float32) @ weights + [0.1, 0.0, -0.1], 0)
        np.testing.assert_allclose(_ask(process), wanted, rtol=1e-5)
        assert "postgresql://db/ocr with **********, 13 characters" in errors.read_text()
        _seal(repo, "battery-staple-too")  # no release, no restart
        end = time.monotonic() + 60
        while "18 characters" not in errors.read_text() and time.monotonic() < end:
            _ask(process)
            time.sleep(0.1)
        assert "18 characters" in errors.read_text()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    for path in (path for path in repo.home.rglob("*") if path.is_file()):
        assert b"correct-horse" not in path.read_bytes(), path
    assert "correct-horse" not in errors.read_text()


def test_a_service_with_nothing_to_serve_says_so(repo: Repository, folder: Path) -> None:
    repo.call("trust", "show").says(0)  # makes the keys, and their root.json
    errors = folder / "errors.txt"
    with _service(repo, errors) as process:
        assert process.wait(60) == 2
    assert "tiny does not serve" in errors.read_text()
    assert "Traceback" not in errors.read_text()
