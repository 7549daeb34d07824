"""The one command that passes the tests: ``python3 -m pip install nox && python3 -m nox``.

Sessions, in order: lint, policies, tests on every CPython that is found (3.10 to 3.13), bare. Suites that start
servers run on one interpreter (``service``), the rest on all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
HERE = Path(__file__).parent
CONSTRAINTS = HERE / "constraints.txt"


def _enable_pyenv() -> None:
    """Let pyenv's shims find every CPython that it has installed.

    pyenv itself sets PYENV_VERSION to the one version that runs this; only a list of several is a person's choice.
    """
    versions = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
    if ":" in os.environ.get("PYENV_VERSION", "") or not versions.is_dir():
        return
    names = sorted(folder.name for folder in versions.iterdir() if folder.name.rpartition(".")[0] in PYTHONS)
    own = "{}.{}.{}".format(*sys.version_info[:3])
    os.environ["PYENV_VERSION"] = ":".join(sorted(names, key=lambda name: name != own))


def _found() -> list[str]:
    """The interpreters of PYTHONS that are here and start."""
    here = [f"{sys.version_info[0]}.{sys.version_info[1]}"]
    for version in PYTHONS:
        path = shutil.which(f"python{version}")
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            here.append(version)
    return [version for version in PYTHONS if version in here]


_enable_pyenv()
FOUND = _found()
MAIN = "3.11" if "3.11" in FOUND else FOUND[-1]

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "policies", "tests", "service", "bare"]


def _install(session: nox.Session, *what: str) -> None:
    # pip, which uv's environments lack, fetches `pypi:` models.
    session.install("-c", str(CONSTRAINTS), "pip", *what)


@nox.session(python=MAIN)
def lint(session: nox.Session) -> None:
    """Ruff, mypy strict, import contracts, workflows."""
    _install(session, "-e", ".[test,opa,nacos,grpc,otel]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")
    workflows = sorted(str(path.relative_to(HERE)) for path in (HERE / ".github" / "workflows").glob("*.yml"))
    session.run("zizmor", "--offline", "--quiet", *workflows)
    if shutil.which("actionlint") or os.environ.get("CI") == "true":
        session.run("actionlint", *workflows, external=True)
    else:
        session.warn("actionlint is not on PATH: workflows were checked by zizmor only")


@nox.session(python=MAIN)
def policies(session: nox.Session) -> None:
    """Lint and test the shipped policies in the embedded engine, and in OPA where it is installed."""
    _install(session, "-e", ".[opa]")
    session.run("trtops", "policy", "lint")
    session.run("trtops", "policy", "test", "--coverage")


@nox.session(python=FOUND)
def tests(session: nox.Session) -> None:
    """Everything that starts no server, on every interpreter."""
    _install(session, "-e", ".[test,opa,grpc]")
    session.run("pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not service and not gpu", *session.posargs)


@nox.session(python=MAIN)
def service(session: nox.Session) -> None:
    """Suites that start servers and child processes, on one interpreter."""
    _install(session, "-e", ".[test,opa,rtx,nacos,grpc,otel]")
    session.run("pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "service and not gpu", *session.posargs)


@nox.session(python=MAIN)
def lock(session: nox.Session) -> None:
    """Resolve constraints.txt anew, over all extras at once (docs/adr/0008); not part of the tests."""
    session.install("uv")
    extras = ("opa", "rtx", "nacos", "grpc", "otel", "nvtx", "test")
    flags = [word for extra in extras for word in ("--extra", extra)]
    plain = ("--no-header", "--no-annotate", "--no-emit-index-url")
    resolve = ("uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.10", "--upgrade")
    session.run(*resolve, *flags, *plain, "-o", str(CONSTRAINTS))


@nox.session(python=FOUND)
def bare(session: nox.Session) -> None:
    """Install with no extra; import every module, run every ``--help``, ship twice: no optional package may leak in."""
    _install(session, ".")
    session.run("python", "tests/bare_env/check.py")
    home = {"TRTOPS_HOME": session.create_tmp()}
    for _ in range(2):
        session.run("trtops", "ship", "engines/ppocr-cls", "--smoke", env=home)
