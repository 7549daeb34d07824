"""A client that dies by SIGKILL at a step of the protocol. Run as a script: SOCKET STEP."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trtops.transport.client import Client
from trtops.transport.greeting import connect
from trtops.transport.layout import VERSION
from trtops.transport.wire import Hello, encode

STEPS = (
    "connected",  # before the hello
    "greeted",  # the welcome is not read
    "welcomed",
    "reserved",  # a slot is half written
    "posted",  # in the ring, the bell is not rung
    "rung",
    "running",  # while its batch runs
    "withdrawn",  # a cancellation was sent
    "answered",  # the answer is in the ring, not read
    "lent",  # outputs are views of a slot
    "asked",  # a question off the data path is not answered
)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, step: str) -> None:
    if step in {"connected", "greeted"}:
        sock = connect(Path(path), 10)
        if step == "greeted":
            sock.send(encode(Hello([VERSION], 4, 4096, 4096)))
        die()
    client = Client(path, slots=4, input_bytes=4096, output_bytes=4096, copy=False)
    x = np.ones((1, 4), np.float32)
    if step == "welcomed":
        die()
    if step == "asked":
        client._wait_until = die  # type: ignore[assignment]
        client.catalogue()
    if step == "reserved":
        _, views = client.reserve("e", {"x": x}, 1)
        views["x"][0, :2] = 7
        die()
    if step == "posted":
        os.eventfd_write = die  # type: ignore[assignment]
    calls = [client.submit("e", {"x": x}, 1) for _ in range(3)]
    if step == "withdrawn":
        client.cancel(calls[1])
    if step in {"running", "answered"}:
        sys.stdout.write("sent\n")
        sys.stdout.flush()
        time.sleep(600)  # the test kills it
    if step == "lent":
        kept = [client.wait(call).outputs for call in calls]
        assert len(kept) == 3
    die()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
