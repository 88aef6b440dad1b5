"""Decides which thread's calls make the steps of a hook: one thread at a time, so that no step mixes two of them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["IDLE", "Turn"]

#: After this many calls of other threads, a thread that made none is considered done.
IDLE = 64


class _Thread:
    """Stands for a thread and dies with it, since thread numbers are reused."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    def __init__(self) -> None:
        self.token = _Thread()


_local = _Local()


def _nobody() -> None:
    """Stands for a reference to a thread where no thread ever had the turn."""


class Turn:
    """The thread that trains, for one hook. Guarded by the hook's lock, except `here`."""

    def __init__(self) -> None:
        self._owner: Any = _nobody  # weak reference
        self._passed = 0  # calls of other threads since the owner's last
        self.missed = 0

    def here(self) -> bool:
        """Whether the calling thread has the turn."""
        return self._owner() is _local.token

    def keeps(self) -> bool:
        """Like `here`; and the thread that has the turn is not idle."""
        if self._owner() is _local.token:
            self._passed = 0
            return True
        return False

    def vacant(self) -> bool:
        """Whether no thread has it: none ever had, or the thread has ended."""
        return self._owner() is None

    def unused(self) -> bool:
        """Whether no thread ever had it."""
        return self._owner is _nobody

    def lost(self) -> bool:
        """Whether the thread that had it has ended."""
        return self._owner is not _nobody and self._owner() is None

    def idle(self) -> bool:
        """Whether the thread that has it has made no call for long."""
        return self._passed >= IDLE

    def take(self) -> None:
        """Gives the turn to the calling thread."""
        self._owner = weakref.ref(_local.token)
        self._passed = 0

    def mine(self, between: bool) -> bool:
        """Takes the turn if possible. False if another thread has it; the call is then counted.

        Parameters
        ----------
        between
            Whether no step is open, so that the turn can change without mixing two threads in one step.
        """
        if self.keeps():
            return True
        if self.vacant() or (between and self.idle()):
            self.take()
            return True
        self.miss()
        return False

    def miss(self) -> None:
        """Counts a call of a thread that does not have the turn."""
        self._passed += 1
        self.missed += 1

    def to_tell(self) -> int:
        """Returns for how many missed calls to write a gap now, at the 1st, 2nd, 4th, 8th, ... one; otherwise 0."""
        return 0 if self.missed & (self.missed - 1) else max(self.missed // 2, 1)
