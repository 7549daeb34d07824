"""An executor behind a server on shared memory, and what it holds."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

from tests.support.executors import LONG, Session, batching, rows
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.transport.client import Client
from trtops.transport.limits import Limits
from trtops.transport.server import Server


class Stack:
    """An executor with one engine, and its server."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.path = path
        self.session = Session()
        self.executor = Executor()
        self.executor.load(
            "e",
            generation=3,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="fake",
            batching=batching(queue={"timeout": "20s"}),
            instances=1,
            open_session=lambda: self.session,
        )
        self.server = Server(path, Attachment(self.executor), limits=Limits(**limits))

    def client(self, **options: Any) -> Client:
        return Client(self.path, **{"slots": 4, "input_bytes": 4096, "output_bytes": 4096, **options})

    def serves(self) -> bool:
        """Whether a good client is answered right; false if it waits for ever."""
        got: list[float] = []

        def ask() -> None:
            with self.client() as client:
                got.extend(float(client.infer("e", rows(index).inputs, 1).outputs["y"][0, 0]) for index in range(5))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(LONG)
        return got == [0, 2, 4, 6, 8]

    def close(self) -> None:
        self.session.gate.set()
        self.server.close()
        self.executor.close(drain=5)


def held() -> tuple[int, int]:
    """Descriptors of this process, and mapped segments."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:trtops-slots")  # noqa: PTH208 - the directory changes
