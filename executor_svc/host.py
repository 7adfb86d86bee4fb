"""What the machine, or the container, lets this process use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Cores this process may keep busy: its CPU affinity, and its cgroup's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(cgroup / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal():
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def available_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int | None:
    """Bytes that can still be had without swapping: the machine's, or what is left to the cgroup if less.

    None where the system does not say.
    """
    amounts = [int(line.split()[1]) * 1024 for line in _read(meminfo).splitlines() if line.startswith("MemAvailable:")]
    limit, used = _read(cgroup / "memory.max").strip(), _read(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        amounts.append(max(0, int(limit) - int(used)))
    return min(amounts, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
