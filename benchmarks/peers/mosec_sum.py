"""The engine of serve_http.py behind mosec: POST /inference {"x": [16 floats]} -> {"y": sum}.

COST_MS stands for device time. FAST_JSON=1 reads and writes with msgspec in place of mosec's own encoder.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import numpy as np
from mosec import Server, Worker

COST = float(os.environ.get("COST_MS", "0")) / 1e3


class Sum(Worker):
    """Adds up rows."""

    def forward(self, data: list[dict[str, list[float]]]) -> list[dict[str, float]]:
        """Run a batch."""
        if COST:
            time.sleep(COST)
        rows = np.asarray([item["x"] for item in data], dtype=np.float32)
        return [{"y": float(total)} for total in rows.sum(1)]


class FastSum(Sum):
    """The same with msgspec."""

    def deserialize(self, data: bytes) -> Any:  # noqa: ANN401 - any JSON value
        """Read a request."""
        return msgspec.json.decode(data)

    def serialize(self, data: dict[str, float]) -> bytes:
        """Write an answer."""
        return msgspec.json.encode(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(FastSum if os.environ.get("FAST_JSON") else Sum, num=1, max_batch_size=16, max_wait_time=5)
    server.run()
