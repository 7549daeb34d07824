"""From a publish to the callbacks of 200 watches on a real Nacos, beside the official SDK's bare push.

Both are measured in the same run and process, by turns: a document that our watches follow, then one that as many
listeners of the SDK follow, spread over as many clients. The clock starts just before the write.

    python benchmarks/nacos_watch.py [--watches 200] [--clients 10] [--rounds 30]

Needs Java and Maven: it starts a server of its own (tests/contract/nacos) on loopback, in memory where there is some.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.nacos_server import NacosServer, free_base, memory_folder
from trtops.registry.nacos.loop import LoopThread
from trtops.registry.nacos.place import GROUP, data_id
from trtops.registry.nacos.push import load_sdk

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.registry.nacos.registry import NacosRegistry

OURS, BARE = "bench/ours", "bench/sdk"
WAIT = 30.0
PAUSE = 0.5


class Round:
    """When each watch heard of one body."""

    def __init__(self, watches: int) -> None:
        """Expect so many."""
        self._left = watches
        self._wanted = ""
        self._start = 0.0
        self._heard: set[int] = set()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.seconds: list[float] = []

    def begin(self, wanted: str) -> None:
        """Start the clock."""
        with self._lock:
            self._wanted, self._heard = wanted, set()
            self._done.clear()
        self._start = time.perf_counter()

    def heard(self, number: int, text: str) -> None:
        """Note when a watch has heard of the wanted text for the first time."""
        took = time.perf_counter() - self._start
        with self._lock:
            if text == self._wanted and number not in self._heard:
                self._heard.add(number)
                self.seconds.append(took)
                if len(self._heard) == self._left:
                    self._done.set()

    def wait(self) -> bool:
        """Tell whether all have heard."""
        return self._done.wait(WAIT)


class Bare:
    """Listeners of the SDK as its documentation has them, on event loops of their own."""

    def __init__(self, server: NacosServer, environment: str, clients: int, watches: int, round_: Round) -> None:
        """Connect and listen."""
        self._folder = tempfile.mkdtemp(prefix="nacos-sdk-")
        self._loops = [LoopThread(f"sdk-{number}") for number in range(clients)]
        self._services: list[Any] = []
        for number, loop in enumerate(self._loops):
            mine = range(number, watches, clients)
            self._services.append(loop.call(self._client(server, environment, mine, round_), WAIT))

    async def _client(self, server: NacosServer, environment: str, mine: range, round_: Round) -> Any:  # noqa: ANN401
        from v2.nacos import ClientConfig, NacosConfigService

        who = server.credentials(environment, "service")
        config = ClientConfig(
            server.place.addresses[0],
            namespace_id=environment,
            username=who.user,
            password=who.password,
            log_level=logging.CRITICAL + 1,
            log_dir=self._folder,
        )
        config.set_cache_dir(self._folder)
        service = await NacosConfigService.create_config_service(config)
        for number in mine:

            async def told(_tenant: str, _group: str, _id: str, content: Any, number: int = number) -> None:  # noqa: ANN401
                round_.heard(number, content)

            await service.add_listener(data_id(BARE), GROUP, told)
        return service

    def close(self) -> None:
        """Disconnect."""
        for loop, service in zip(self._loops, self._services, strict=True):
            service.grpc_client_proxy.listen_task.cancel()
            loop.stop(service.shutdown)
        shutil.rmtree(self._folder, ignore_errors=True)


def _publish(registry: NacosRegistry, name: str, number: int, round_: Round) -> float:
    """Seconds that the write took; waits until every watch has heard."""
    before = None if number == 0 else f"{name} {number - 1:04}".encode()
    text = f"{name} {number:04}"
    round_.begin(text)
    start = time.perf_counter()
    registry.swap(name, text.encode(), before)
    took = time.perf_counter() - start
    if not round_.wait():
        sys.exit(f"{name}: after {WAIT:g} s not every watch had heard")
    time.sleep(PAUSE)
    return took


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _row(name: str, seconds: list[float]) -> str:
    shown = [statistics.median(seconds), _quantile(seconds, 0.9), _quantile(seconds, 0.99), max(seconds)]
    return f"| {name} | " + " | ".join(f"{1000 * one:.0f}" for one in shown) + " |"


def measure(server: NacosServer, watches: int, clients: int, rounds: int) -> None:
    environment = server.environment("bench")
    ours, bare = Round(watches), Round(watches)
    registries = [server.registry(environment, "service", interval=3600.0) for _ in range(clients)]
    running = [
        registries[number % clients].watch(OURS, _handler(ours, number)) for number in range(watches)
    ]  # fmt: skip
    with closing(server.registry(environment)) as publisher, closing(Bare(server, environment, clients, watches, bare)):
        for number in range(2):  # connections, caches: not measured
            _publish(publisher, OURS, number, ours)
            _publish(publisher, BARE, number, bare)
        ours.seconds, bare.seconds = [], []
        writes = []
        for number in range(2, rounds + 2):
            writes.append(_publish(publisher, OURS, number, ours))
            writes.append(_publish(publisher, BARE, number, bare))
        print(f"{watches} watches on {clients} clients, {rounds} publishes each, by turns; milliseconds\n")
        print("| | p50 | p90 | p99 | max |\n|---|---|---|---|---|")
        print(_row("the SDK's bare push", bare.seconds))
        print(_row("trtops' watch", ours.seconds))
        print(_row("the write itself", writes))
        ratio = _quantile(ours.seconds, 0.99) / _quantile(bare.seconds, 0.99)
        print(f"\np99 of trtops' watch: {ratio:.2f} times the SDK's")
    for watch in running:
        watch.close()
    for registry in registries:
        registry.close()


def _handler(round_: Round, number: int) -> Callable[[bytes | None], None]:
    return lambda body: round_.heard(number, (body or b"").decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watches", type=int, default=200)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    load_sdk()
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, CPython {platform.python_version()}"
    print(f"# {machine}, Nacos 3.1.0, load {os.getloadavg()[0]:.1f}")
    folder = memory_folder()
    server = NacosServer(folder / "home", free_base())
    try:
        server.start()
        server.make_administrator()
        measure(server, given.watches, given.clients, given.rounds)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
