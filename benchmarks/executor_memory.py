"""What an idle server takes of memory, by configuration and process.

Run: ``python benchmarks/executor_memory.py [--rounds N] [--write FILE]``. An engine of the fake backend is shipped and
served by ``trtops serve`` as a user starts it. The figure is the proportional set size (``Pss`` of
``/proc/PID/smaps_rollup``: a page that k processes share counts a k-th in each), summed over all of its processes,
after one request and two idle seconds. ``own`` leaves out files of libraries, which processes of others may share.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from printing import arguments, emit, machine, spread, table
from served import ENGINE, serving, ship

if TYPE_CHECKING:
    import psutil

_GOAL = 120.0
_CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "executor and 1 front end (default)": (),
    "the same, with gRPC and --socket": ("--grpc-port", "0", "--socket", "{folder}/socket"),
    "executor and 2 front ends": ("--front-ends", "2"),
    "all in one process (--isolation none)": ("--isolation", "none"),
}
_ROW = ",".join(["1.0"] * 16)
_BODY = f'{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[{_ROW}]}}]}}'.encode()


def proportional(process: psutil.Process) -> tuple[float, float]:
    """MB of a process: its share of all pages, and of those that belong to no file."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return int(fields["Pss"]) * 1024 / 1e6, int(fields["Pss_Anon"]) * 1024 / 1e6


def ask(port: str) -> None:
    """One request, so that what serving loads is loaded."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{ENGINE}/infer", _BODY, timeout=30) as answer:
        assert b"16.0" in answer.read()


def measure(folder: Path, flags: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """MB of each of a server's processes, by name; those of one name are summed."""
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    with serving(folder, *(flag.format(folder=folder) for flag in flags)) as (process, ready):
        ask(ready["url"].rpartition(":")[2])
        time.sleep(2.0)
        for one in (process, *process.children(recursive=True)):
            name = "server" if one.pid == process.pid else one.name().removeprefix("trtops-")
            found[name] = tuple(map(sum, zip(found[name], proportional(one), strict=True)))  # type: ignore[assignment]
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments(parser, 3)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, tuple[float, float]]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="trtops-memory-") as name:
        ship(Path(name))
        for turn in range(options.rounds):
            for title, flags in _CONFIGURATIONS.items():
                sys.stderr.write(f"round {turn + 1} of {options.rounds}: {title}\n")
                runs[title].append(measure(Path(name), flags))
    rows = []
    for title, found in runs.items():
        whole, own = ([sum(part[at] for part in one.values()) for one in found] for at in (0, 1))
        parts = {name: statistics.median(one[name][0] for one in found) for name in found[0]}
        shares = ", ".join(f"{name} {mb:.0f}" for name, mb in parts.items())
        rows.append([title, spread(whole, ".0f"), spread(own, ".0f"), shares])
    first = [sum(part[0] for part in one.values()) for one in next(iter(runs.values()))]
    verdict = "holds" if max(first) <= _GOAL else "missed"
    text = [
        "# Memory of an idle server, fake backend\n",
        machine(options.rounds),
        table(["configuration", "PSS MB", "own MB", "PSS MB by process"], rows),
        f"Goal: an idle executor with a front end takes at most {_GOAL:.0f} MB: {verdict}.\n",
    ]
    emit("\n".join(text), options.write)


if __name__ == "__main__":
    main()
