"""How long an answer of a child is waited for when a run ends: as long as the child works, within a bound."""

from __future__ import annotations

import select
import time

__all__ = ["wait_for"]

_LOOK_S = 0.02
_IDLE = 5  # looks in a row at which it slept and had used no time: what it waits for was in another process


def wait_for(pipe: int, pid: int, until: float) -> None:
    """Returns when the pipe has something, when the child has stopped working, or at that time (monotonic)."""
    idle, used = 0, ("", 0)
    answer = select.poll()  # `select.select` knows no number above 1023
    answer.register(pipe, select.POLLIN)
    while idle < _IDLE:
        left = until - time.monotonic()
        if left <= 0 or answer.poll(min(left, _LOOK_S) * 1000):
            return
        now = _life(pid)
        idle = idle + 1 if now == used and now[0] not in "RD" else 0
        used = now


def _life(pid: int) -> tuple[str, int]:
    """State of a process, and the ticks it has used; a process that is gone sleeps."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return "S", 0
