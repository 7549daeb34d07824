"""Run inside a virtual environment with trtops and none of its extras.

Imports every module, runs ``--help`` of every command, and checks that the command line's start imports nothing heavy.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

OPTIONAL = (
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "opa_client",
    "v2",
    "ray",
    "PIL",
    "hypothesis",
    "pytest",
    "tritonclient",
)
HEAVY = ("numpy", "onnx", "onnxruntime", "pydantic", "rich", "fsspec", "cryptography", "regorus", "yaml", "uvloop")
CPU_SECONDS = 0.250


def modules() -> list[str]:
    import trtops

    return sorted(
        info.name for info in pkgutil.walk_packages(trtops.__path__, "trtops.") if not info.name.endswith("__main__")
    )


def commands() -> list[list[str]]:
    """Every command and group, found by walking the application."""
    import typer.main

    from trtops.cli.main import app

    found: list[list[str]] = [[]]

    def walk(command: object, path: list[str]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            found.append([*path, name])
            walk(child, [*path, name])

    walk(typer.main.get_command(app), [])
    return found


def imported_by(arguments: list[str]) -> tuple[set[str], float]:
    """Top-level modules that a command line has imported at its end, and its CPU seconds."""
    script = (
        "import sys, json, resource\n"
        "from trtops.cli.main import run\n"
        f"sys.argv = ['trtops', *{arguments!r}]\n"
        "try:\n    run()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps([sorted({name.partition('.')[0] for name in sys.modules}), used.ru_utime + used.ru_stime]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names, seconds = json.loads(done.stdout.splitlines()[-1])
    return set(names), seconds


def main() -> int:
    wrong = [
        f"{name} is installed: this is not a bare environment"
        for name in OPTIONAL
        if importlib.util.find_spec(name) is not None
    ]
    found = modules()
    for name in found:
        try:
            importlib.import_module(name)
        except ImportError as error:  # noqa: PERF203 - each module tells of its own
            wrong.append(f"import {name}: {error}")
    helps = commands()
    for path in helps:
        done = subprocess.run(
            [sys.executable, "-m", "trtops", *path, "--help"], capture_output=True, text=True, check=False
        )
        if done.returncode or "Usage:" not in done.stdout or done.stderr:
            wrong.append(f"trtops {' '.join(path)} --help: exit {done.returncode}\n{done.stderr}")
    leaked = imported_by(["--help"])[0] & set(HEAVY)
    if leaked:
        wrong.append(f"trtops --help imports {', '.join(sorted(leaked))}")
    seconds = min(imported_by(["--help"])[1] for _ in range(5))
    print(
        f"{len(found)} modules, {len(helps)} commands, --help {seconds * 1000:.0f} ms of CPU (goal {CPU_SECONDS * 1000:.0f})"
    )
    print("\n".join(wrong) or "bare environment: all well")
    print(f"{len(found) + len(helps) - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
