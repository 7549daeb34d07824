"""State of the host around a measurement: what may have disturbed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BUSY = 0.25


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was read; None where this machine does not tell.

    Attributes:
        cores: logical CPUs that this process may use.
        load: runnable threads, averaged over the last minute, all processes.
        governor: frequency governor of the first CPU, e.g. ``powersave``.
        frequency_khz: its frequency now.
        stolen: hundredths of a second that a hypervisor took since boot, all CPUs.
        throttled: how often the control group's CPU quota stopped its processes.
    """

    cores: int | None = None
    load: float | None = None
    governor: str | None = None
    frequency_khz: int | None = None
    stolen: int | None = None
    throttled: int | None = None


def read_conditions(root: Path, cores: int) -> Conditions:
    """Read ``/sys`` and ``/proc`` under a root (``/`` outside of tests). Never raises: what cannot be read is None."""
    cpu = root / "sys/devices/system/cpu/cpu0/cpufreq"
    load = _text(root / "proc/loadavg").split()
    stat = _text(root / "proc/stat").split("\n", 1)[0].split()
    group = dict(
        line.split(maxsplit=1) for line in _text(root / "sys/fs/cgroup/cpu.stat").splitlines() if len(line.split()) > 1
    )
    steal_column = 8
    return Conditions(
        cores=cores,
        load=_number(load[0]) if load else None,
        governor=_text(cpu / "scaling_governor") or None,
        frequency_khz=_whole(_text(cpu / "scaling_cur_freq")),
        stolen=_whole(stat[steal_column]) if len(stat) > steal_column and stat[0] == "cpu" else None,
        throttled=_whole(group.get("nr_throttled", "")),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def condition_warnings(before: Conditions, after: Conditions) -> list[str]:
    """What may have disturbed the numbers, in words."""
    found: list[str] = []
    # Load before, since the measurement itself adds to the load after.
    if before.load is not None and before.cores and before.load > _BUSY * before.cores + 1:
        found.append(
            f"the machine was busy before the measurement: load {before.load:.1f} on {before.cores} CPUs; "
            "other processes may have slowed it"
        )
    if before.governor in ("powersave", "conservative", "ondemand", "schedutil"):
        found.append(
            f"CPU frequency follows the governor {before.governor}; set it to performance for numbers that repeat"
        )
    if before.frequency_khz and after.frequency_khz:
        change = after.frequency_khz / before.frequency_khz - 1
        if abs(change) > _BUSY:
            found.append(f"CPU frequency changed by {change:+.0%} while measuring")
    if before.stolen is not None and after.stolen is not None and after.stolen > before.stolen:
        found.append(f"the hypervisor took {(after.stolen - before.stolen) / 100:.2f} s of CPU time while measuring")
    if before.throttled is not None and after.throttled is not None and after.throttled > before.throttled:
        found.append(
            f"the CPU quota of the container stopped this process {after.throttled - before.throttled} times; "
            "raise the quota"
        )
    return found
