"""A backend that is asked in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtops.errors import NotLoadable
from trtops.executor.examine import NATIVE, Examined
from trtops.spec.engine import Target


def test_it_says_what_the_backend_says_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = subprocess.run

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    examined = Examined("fake")
    for _ in range(2):
        status = examined.status(Target(backend="fake"))
        assert (status.backend, status.can_load, status.version) == ("fake", True, "1.0.0")
    assert len(asked) == 1


def test_a_library_that_is_not_there_or_breaks_is_a_reason() -> None:
    missing = Examined("none").status(Target(backend="fake"))
    assert not missing.can_load
    assert "there is no backend 'none'" in str(missing.reason)
    with pytest.raises(NotLoadable, match="loaded by workers"):
        Examined("tensorrt").load(Path("engine"), None)  # type: ignore[arg-type]


def test_no_native_library_comes_into_the_process_that_asks() -> None:
    code = (
        "import sys\n"
        "from trtops.executor.examine import Examined, NATIVE\n"
        "from trtops.spec.engine import Target\n"
        "for name in sorted(NATIVE):\n"
        "    target = Target(backend=name, compute_capability='8.6')\n"
        "    status = Examined(name).status(target)\n"
        "    assert status.can_load or status.reason, status\n"
        "sys.exit(any(name.split('.')[0] in {'tensorrt', 'tensorrt_rtx', 'cuda'} for name in sys.modules))\n"
    )
    assert NATIVE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
