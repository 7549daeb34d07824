"""A plugin library for tests: compiled where TensorRT 8 and a compiler are, else from ``TRTOPS_TEST_PLUGIN``."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("copy_plugin.cpp")


def copy_plugin(folder: Path) -> Path:
    """The library of ``copy_plugin.cpp``; skips where it cannot be had."""
    if made := os.environ.get("TRTOPS_TEST_PLUGIN"):
        return Path(made)
    compiler, found = shutil.which("c++") or shutil.which("g++"), find_spec("tensorrt")
    if compiler is None or found is None or found.origin is None:
        pytest.skip("there is no C++ compiler, or no TensorRT")
    out = folder / "copy_plugin.so"
    command = [compiler, "-shared", "-fPIC", "-std=c++14", str(SOURCE), "-o", str(out), "-ldl"]
    command += [f"-L{Path(found.origin).parent}", "-l:libnvinfer.so.8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode:
        pytest.skip(f"the plugin cannot be compiled: {done.stderr[-300:]}")
    return out
