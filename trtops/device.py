"""Identity of what an engine runs on (design §4.7), as a value. How it is detected is the backends' business."""

from __future__ import annotations

from typing import Literal

from trtops.digest import Value


class Device(Value):
    """One device that executes engines: a GPU, a MIG slice of one, or the CPUs of a host.

    Attributes:
        kind: what it is.
        name: the vendor's name, e.g. ``NVIDIA H200``; for a CPU its architecture, e.g. ``x86_64``.
        compute_capability: ``major.minor`` of a GPU, e.g. ``9.0``.
        sm_count: streaming multiprocessors of a GPU (of its slice, if it is one).
        cores: logical CPUs that this process may use.
        memory_bytes: memory of the device in bytes.
        mig: MIG profile, e.g. ``1g.18gb``; None for a whole GPU.
        driver: version of the driver, e.g. ``570.86.15``; None for a CPU.
    """

    kind: Literal["cpu", "gpu"]
    name: str
    compute_capability: str | None = None
    sm_count: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    mig: str | None = None
    driver: str | None = None

    @property
    def label(self) -> str:
        """A short name for people: ``NVIDIA H200 (sm 9.0)`` or ``x86_64 CPU, 2 cores``."""
        if self.kind == "gpu":
            slice_of = f", {self.mig}" if self.mig else ""
            return f"{self.name} (sm {self.compute_capability}{slice_of})"
        return f"{self.name} CPU, {self.cores} cores" if self.cores else f"{self.name} CPU"
