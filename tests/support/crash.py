"""Kill a process at each of its writes in turn: ``python -m tests.support.crash FOLDER SCENARIO``.

Writes are found, not listed: an audit hook of the interpreter sees every file that is opened for writing, renamed,
linked, removed or made below the folder, and ``os.fsync`` is intercepted too. The process forks one child for each
point, and each child kills itself there (SIGKILL); at an fsync it first cuts the file in half. Prints one line of
JSON a point: the child's folder, and what it died at (null: it finished, there are no more points).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.crash_verbs import VERBS
from tests.support.releases import CHANNEL, NOW, bundle, has_all, runtime
from trtops.registry.file import FileRegistry
from trtops.release.keys import KeyStore
from trtops.release.publish import publish, refresh
from trtops.release.rollback import rollback

if TYPE_CHECKING:
    from collections.abc import Callable

_WRITES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def release(home: Path, artifact: str, *, now: int, **config: Any) -> int:
    keys = KeyStore(home)
    parts = bundle(keys, artifact=artifact, created=now, config=runtime(**config))
    return publish(FileRegistry(home, "dev"), keys, CHANNEL, parts, now=now, has_artifact=has_all).generation


def _nothing(_: Path) -> None:
    """Start from an empty folder."""


def _keys(home: Path) -> None:
    KeyStore(home).root()


def _two(home: Path) -> None:
    release(home, "engine 0", now=NOW - 20)
    release(home, "engine 1", now=NOW - 10)


# name -> (what is there before, what is killed)
SCENARIOS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "keys": (_nothing, _keys),
    "first": (_keys, lambda home: release(home, "engine 1", now=NOW)),
    "next": (_two, lambda home: release(home, "engine 2", now=NOW, changed=1)),
    "rollback": (_two, lambda home: rollback(FileRegistry(home, "dev"), KeyStore(home), CHANNEL, to=1, now=NOW)),
    "refresh": (_two, lambda home: refresh(FileRegistry(home, "dev"), KeyStore(home), CHANNEL, now=NOW, lifetime=9)),
    **{name: (prepare, act) for name, (prepare, act, _) in VERBS.items()},
}


def _die_at(point: int, folder: Path, report: int) -> None:
    """Count writes below a folder from now on, and die at one of them."""
    count = 0

    def reached(what: str) -> None:
        nonlocal count
        count += 1
        if count == point:
            os.write(report, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in _WRITES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING)
        if writes and isinstance(arguments[0], str | os.PathLike) and folder in Path(arguments[0]).parents:
            reached(event)

    fsync = os.fsync

    def half(descriptor: int) -> None:
        nonlocal count
        if count + 1 == point and stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        reached("fsync")
        fsync(descriptor)

    sys.addaudithook(hook)
    os.fsync = half  # type: ignore[assignment]


def main(folder: Path, scenario: str) -> None:
    prepare, act = SCENARIOS[scenario]
    template = folder / "template"
    template.mkdir(parents=True)
    prepare(template)
    for point in range(1, 1000):
        home = folder / str(point)
        shutil.copytree(template, home)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            _die_at(point, home, writing)
            act(home)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            died_at = pipe.read().decode() or None
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != (-signal.SIGKILL if died_at else 0):
            sys.exit(f"the child of point {point} ended with {code}")
        sys.stdout.write(json.dumps({"home": str(home), "died_at": died_at}) + "\n")
        if died_at is None:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
