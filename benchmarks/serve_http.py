"""Serving over HTTP beside other servers, in the same run, interleaved: one command, all tables.

    python benchmarks/serve_http.py [--rounds 5] [--seconds 4] [--only free,swap] [--write FILE]

The engine adds up 16 floats, in batches of 16 within 5 ms; a sleep stands for a device. Closed-loop load of 64
connections comes from ``wrk`` with one thread, which is light enough not to be the bottleneck; open-loop load and load
that looks at each answer come from a client in Python (``serve_load.py``). Peers are found in ``--peers``, where
``benchmarks/peers/install.sh`` puts them; one that is missing is left out. A ratio is of the medians' servers in the
same round; its spread is from the least to the most of all rounds. CPU time counts a server's processes and unlike
requests a second hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import serve_load as load
from serve_bench import JSON, LUA, OIP, PLAIN, ROW, Bench, Candidate, best, mosec, ratios_of, report, triton, trtops
from serve_load import Seen, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def everybody(bench: Bench, cost: float) -> Iterator[list[Candidate]]:
    """All servers with this device time a batch, one after the other in the list."""
    port = bench.options.port
    with ExitStack() as stack:
        found: list[Candidate] = []
        for count, name in ((0, "trtops, one process"), (1, "trtops, 1 front end"), (2, "trtops, 2 front ends")):
            server = stack.enter_context(trtops(cost_ms=cost, front_ends=count))
            found += [Candidate(f"{name}, JSON", server, "json"), Candidate(f"{name}, binary", server, "binary")]
        venv = bench.peer("mosec")
        if venv is not None:
            slow = stack.enter_context(mosec(venv, port, cost, fast=False))
            fast = stack.enter_context(mosec(venv, port + 1, cost, fast=True))
            found += [Candidate("mosec", slow, "mosec"), Candidate("mosec, fast JSON", fast, "mosec")]
        venv = bench.peer("triton")
        if venv is not None:
            server = stack.enter_context(triton(venv, port + 2, cost))
            found += [Candidate("Triton, JSON", server, "json"), Candidate("Triton, binary", server, "binary")]
        yield found


# -- scenarios ---------------------------------------------------------------------------------------------------------


def free(bench: Bench) -> None:
    """64 clients, device free."""
    with everybody(bench, 0.0) as all_:
        bench.rounds(all_)
    by = {one.name: one for one in all_}
    bench.table(all_, by.get("mosec", all_[0]))
    one = best([by["trtops, one process, JSON"], by["trtops, 1 front end, JSON"]])
    two = by["trtops, 2 front ends, JSON"]
    binary = best(
        [candidate for candidate in all_ if candidate.name.startswith("trtops") and "binary" in candidate.name]
    )
    for mine, theirs, least in (
        (two, "mosec", 2.5),
        (two, "mosec, fast JSON", 2.0),
        (two, "Triton, JSON", 3.5),
        (one, "mosec, fast JSON", 1.5),
        (binary, "mosec", 3.0),
    ):
        if theirs in by:
            ratios = ratios_of(mine, by[theirs])
            bench.goal(
                f"free: {mine.name} to {theirs}", f"≥ {least}", ratios, lambda found, least=least: found >= least
            )


def device(bench: Bench) -> None:
    """The same at 5 ms a batch."""
    cost = 5.0
    began, naps = time.perf_counter(), 0
    while time.perf_counter() - began < min(2.0, bench.options.seconds):
        time.sleep(cost / 1e3)
        naps += 1
    allowed = naps * 16 / (time.perf_counter() - began)
    bench.say(f"This machine's sleep allows {allowed:,.0f} requests/s.")
    bench.say()
    with everybody(bench, cost) as found:
        all_ = [one for one in found if "binary" not in one.name]
        bench.rounds(all_)
    by = {one.name: one for one in all_}
    bench.table(all_, by.get("mosec", all_[0]))
    ours = [one for one in all_ if one.name.startswith("trtops")]
    mine, peers = best(ours), [one for one in all_ if one not in ours]
    shares = [seen.rps / allowed for seen in mine.seen]
    bench.goal(f"5 ms: {mine.name} to what the sleep allows", "≥ 0.95", shares, lambda found: found >= 0.95)
    if "mosec" in by:
        bench.goal(f"5 ms: {mine.name} to mosec", "≥ 1.4", ratios_of(mine, by["mosec"]), lambda found: found >= 1.4)
        late = ratios_of(mine, by["mosec"], "p99")
        bench.goal("5 ms: p99 to mosec's", "≤ 0.7", late, lambda found: found <= 0.7)
    if peers:
        lowest = [min(peer.seen[number].p99 for peer in peers) for number in range(bench.options.rounds)]
        late = [seen.p99 / low for seen, low in zip(mine.seen, lowest, strict=True)]
        bench.goal("5 ms: p99 to the best peer's", "< 1", late, lambda found: found < 1)


def policy(bench: Bench) -> None:
    """Priorities, timeouts and bounds on against none; each request carries a priority and a timeout."""
    on = {"priorities": 3, "queue": {"timeout": "5s", "max_size": 256}}
    with trtops(batching={"queue": {"timeout": "0s"}}) as plain, trtops(batching=on) as strict:
        off = Candidate("no policy", plain, "json")
        all_ = [
            off,
            Candidate("policy of the spec", strict, "json"),
            Candidate("and of each request", strict, "policy"),
        ]
        bench.rounds(all_)
    bench.table(all_, off)
    bench.goal("any queue policy", "≥ 0.95", ratios_of(all_[1], off), lambda found: found >= 0.95)
    bench.say("The last row also sends and reads 52 bytes more of JSON in every request.")
    bench.say()


def idle(bench: Bench) -> None:
    """Poisson, 100 requests a second, on an idle server."""
    late: list[float] = []
    with trtops() as server:
        span = max(2.0, bench.options.seconds)
        late.extend(load.poisson(server.port, PLAIN, 100.0, span, seed).p99 for seed in range(bench.options.rounds))
    bench.say(f"p99 of each round: {', '.join(f'{one:.2f}' for one in late)} ms; the engine's delay is 5 ms.")
    bench.say()
    bench.goal("idle, Poisson 100 rps: p99, ms", "≤ 8.5 (delay + 3.5)", late, lambda found: found <= 8.5)


def shapes(bench: Bench) -> None:
    """Two shapes that alternate, 200 ms delay: how many rows a batch has."""
    wide = JSON.replace("[1,16]", "[1,32]").replace(ROW, f"{ROW},{ROW}")
    asked = [PLAIN, request(OIP, wide.encode(), Content_Type="application/json")]
    sizes: list[float] = []
    with trtops(width=0, batching={"max_queue_delay": "200ms", "queue": {"timeout": "30s"}}) as server:
        for _ in range(bench.options.rounds):
            names = 'trtops_batch_rows_sum{engine="sum"}', 'trtops_batch_rows_count{engine="sum"}'
            before = [server.metric(name) for name in names]
            load.closed(server.port, asked, 64, bench.options.seconds)
            rows, batches = (server.metric(name) - old for name, old in zip(names, before, strict=True))
            sizes.append(rows / batches)
    bench.say(f"Rows a batch in each round: {', '.join(f'{one:.1f}' for one in sizes)}.")
    bench.say()
    bench.goal("two shapes alternating: rows a batch of 16", "≥ 15", sizes, lambda found: found >= 15)


def timeout(bench: Bench) -> None:
    """A 100 ms timeout behind a 400 ms batch: when its client hears of it."""
    body = JSON[:-1] + ',"parameters":{"timeout":100000}}'
    took: list[float] = []
    with trtops(cost_ms=400.0) as server:
        for _ in range(bench.options.rounds):
            address = f"http://127.0.0.1:{server.port}{OIP}"
            slow = subprocess.Popen(["curl", "-s", "-o", os.devnull, "-d", JSON, address], stdout=subprocess.DEVNULL)
            time.sleep(0.1)
            began = time.perf_counter()
            try:
                urllib.request.urlopen(address, body.encode(), timeout=20)
                status = 200
            except urllib.error.HTTPError as error:
                status = error.code
                error.close()
            took.append((time.perf_counter() - began) * 1e3)
            assert status == 504, status
            slow.wait(20)
    bench.say(f"Answered 504 after {', '.join(f'{one:.1f}' for one in took)} ms.")
    bench.say()
    bench.goal("100 ms timeout behind a 400 ms batch, ms", "≤ 110", took, lambda found: found <= 110)


def swap(bench: Bench) -> None:
    """Swaps under 64 clients, at once and with an engine that takes 2 s to load, against the same load without."""
    for seconds in (0.0, 2.0):
        failed, more = 0.0, []
        with trtops(load_s=seconds) as server:
            load.closed(server.port, [PLAIN], 64, 1.0)
            span = max(bench.options.seconds, seconds + 1.5)
            for _ in range(bench.options.rounds):
                calm = load.closed(server.port, [PLAIN], 64, span)
                control = f"http://127.0.0.1:{server.ports['control_port']}/v2/repository/models/sum/load"
                swapper = subprocess.Popen(
                    ["bash", "-c", f"sleep 0.5; curl -sf -X POST {control}"], stdout=subprocess.DEVNULL
                )
                busy = load.closed(server.port, [PLAIN], 64, span)
                assert swapper.wait(30) == 0, "the swap failed"
                failed += busy.failed
                more.append(busy.longest - calm.longest)
        name = "at once" if not seconds else f"{seconds:g} s to load"
        bench.say(
            f"{name}: {failed:g} failed; longest request with a swap against without: "
            f"{', '.join(f'{one:+.1f}' for one in more)} ms."
        )
        bench.goal(f"swap, {name}: failed requests", "0", [failed], lambda found: found == 0, "g")
        bench.goal(f"swap, {name}: longest request, ms more", "≤ 50", more, lambda found: found <= 50, ".1f")
    bench.say()


def batching(bench: Bench) -> None:
    """Static against dynamic batching under Poisson load; a batch costs 4 ms and 0.25 ms a row."""
    kinds = {
        "fixed 16": {"max_queue_delay": "500ms"},
        "window 20 ms": {"max_queue_delay": "20ms"},
        "dynamic": {"max_queue_delay": "20ms", "preferred": [1, 2, 4, 8, 16]},
    }
    capacity = 16 / (4e-3 + 16 * 0.25e-3)
    bench.say("| load, of capacity | batching | requests/s | p50 ms | p99 ms |")
    bench.say("|---|---|---|---|---|")
    worse: list[float] = []
    for share in (0.02, 0.1, 0.3, 0.6, 0.9, 1.2):
        found: dict[str, Seen] = {}
        for name, section in kinds.items():
            queue = {"queue": {"timeout": "1s", "max_size": 256}}
            with trtops(cost_ms=4.0, row_ms=0.25, batching={**section, **queue}) as server:
                seen = load.poisson(server.port, PLAIN, share * capacity, max(2.0, bench.options.seconds), 7)
            found[name] = seen
            bench.say(f"| {share:g} | {name} | {seen.rps:,.0f} | {seen.p50:.1f} | {seen.p99:.1f} |")
        worse.append(found["dynamic"].p99 / min(found[name].p99 for name in kinds if name != "dynamic"))
    bench.say()
    bench.goal(
        "dynamic to the best static: p99 at each load (worst)", "≤ 1.1", [max(worse)], lambda found: found <= 1.1
    )


def callers(bench: Bench) -> None:
    """4, 32 and 128 clients: p50 a request served."""
    found: dict[int, list[Seen]] = {4: [], 32: [], 128: []}
    with trtops() as server:
        url = f"http://127.0.0.1:{server.port}{OIP}"
        for _ in range(bench.options.rounds):
            for clients, seen in found.items():
                script = bench.scripts / "json.lua"
                seen.append(load.wrk(url, script, connections=clients, seconds=bench.options.seconds))
    bench.say("| clients | requests/s | p50 ms | p99 ms | p50 by client, µs |")
    bench.say("|---|---|---|---|---|")
    middle = statistics.median
    for clients, seen in found.items():
        p50 = middle(one.p50 for one in seen)
        bench.say(
            f"| {clients} | {middle(one.rps for one in seen):,.0f} | {p50:.2f} | "
            f"{middle(one.p99 for one in seen):.2f} | {p50 / clients * 1e3:.0f} |"
        )
    bench.say()
    growth = [(late.p50 / 128) / (early.p50 / 4) for early, late in zip(found[4], found[128], strict=True)]
    bench.goal("128 clients to 4: p50 a request served", "≤ 1.5", growth, lambda grown: grown <= 1.5)


def memory(bench: Bench) -> None:
    """An idle server: proportional set size of its processes."""
    sizes: dict[int, float] = {}
    for count in (0, 1, 2):
        with trtops(front_ends=count) as server:
            time.sleep(0.5)
            family = [server.process, *server.process.children(recursive=True)]
            sizes[count] = sum(one.memory_full_info().pss for one in family) / 1e6
            bench.say(f"{count} front ends: {sizes[count]:.0f} MB.")
    bench.say()
    bench.goal(
        "idle memory, executor and front end in one process, MB", "≤ 120", [sizes[0]], lambda mb: mb <= 120, ".0f"
    )


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    one.__name__: one for one in (free, device, policy, idle, shapes, timeout, swap, batching, callers, memory)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load a round and server")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas between them")
    parser.add_argument("--port", type=int, default=18100, help="the first of the peers' four ports")
    parser.add_argument("--peers", default=str(Path.home() / ".cache" / "trtops" / "peers"))
    parser.add_argument("--write", type=Path, help="also write the report there")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}: there are {', '.join(SCENARIOS)}")
    for program in ("wrk", "curl"):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed: apt-get install {program}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in LUA.items():
            (Path(folder) / f"{name}.lua").write_text(text)
        bench = Bench(options, Path(folder))
        bench.say("# Serving over HTTP")
        bench.say()
        only = "" if len(chosen) == len(SCENARIOS) else f"--only {options.only} "
        bench.say(
            f"`python benchmarks/serve_http.py {only}--rounds {options.rounds} --seconds {options.seconds:g}`, "
            f"{os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, "
            f"NumPy {np.__version__}."
        )
        bench.say()
        for name in chosen:
            bench.say(f"## {SCENARIOS[name].__doc__}".rstrip(".").replace('"""', ""))
            bench.say()
            SCENARIOS[name](bench)
        report(bench)
        bench.say()
        bench.say(f"The run took {(time.monotonic() - began) / 60:.1f} minutes.")
    if options.write is not None:
        options.write.write_text("\n".join(bench.text) + "\n")


if __name__ == "__main__":
    main()
