"""ResNet-50 by torch.compile and CUDA graphs behind mosec, as a user would write it: float32 bytes in and out.

One row a request; mosec puts up to 64 together and waits 2 ms for them. Batches are filled up to one of four sizes,
since each is compiled and captured by itself. DRY=1 answers zeros and needs no torch.
"""

from __future__ import annotations

import os
import sys

import numpy as np
from mosec import Server, Worker

SHAPE = (3, 224, 224)
SIZES = (1, 8, 32, 64)


class ResNet(Worker):
    """The model, in the one process that owns the GPU."""

    def __init__(self) -> None:
        """Compile and capture every size."""
        super().__init__()
        if os.environ.get("DRY"):
            return
        import torch  # type: ignore[import-not-found,unused-ignore]
        import torchvision  # type: ignore[import-not-found,unused-ignore]

        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = os.environ.get("TF32") == "1"
        torch.manual_seed(50)
        model = torchvision.models.resnet50(weights=None).cuda().eval()
        self.model = torch.compile(model, mode="reduce-overhead", dynamic=False)
        self.pinned = torch.empty((SIZES[-1], *SHAPE), pin_memory=True)
        for _ in range(3):
            for size in SIZES:
                self.infer(size)

    def infer(self, rows: int) -> np.ndarray:
        """Run the first rows of the pinned buffer."""
        with self.torch.inference_mode():
            return self.model(self.pinned[:rows].cuda(non_blocking=True)).cpu().numpy()

    def deserialize(self, data: bytes) -> np.ndarray:
        """Read a request."""
        return np.frombuffer(data, np.float32).reshape(SHAPE)

    def serialize(self, data: np.ndarray) -> bytes:
        """Write an answer."""
        return data.tobytes()

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        """Run a batch."""
        if os.environ.get("DRY"):
            return [np.zeros(1000, np.float32) for _ in data]
        rows = len(data)
        np.stack(data, out=self.pinned[:rows].numpy())
        return list(self.infer(next(size for size in SIZES if size >= rows))[:rows])


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--timeout", "60000", "--wait", "2", *sys.argv[1:]]
    server = Server()
    server.append_worker(ResNet, num=1, max_batch_size=SIZES[-1], max_wait_time=2, start_method="spawn", timeout=60)
    server.run()
