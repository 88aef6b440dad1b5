"""How much memory the process has taken, and how much it may still take."""

from __future__ import annotations

import os

__all__ = ["address_space", "free_memory", "resident_memory"]


def address_space() -> int:
    """Returns the bytes of addresses that this process has mapped."""
    return _statm(0)


def resident_memory() -> int:
    """Returns the bytes of memory that this process has taken."""
    return _statm(1)


def _statm(column: int) -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[column]) * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> int:
    """Returns the bytes that this process may still take, by the machine and its control group."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next((int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")), 0)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit, encoding="ascii") as most, open(used, encoding="ascii") as now:
                free = min(free, int(most.read()) - int(now.read()))
        except (OSError, ValueError):  # there is no such limit
            continue
    return free
