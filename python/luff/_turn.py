"""Whose calls make the steps of a hook: those of one thread at a time, so that no step holds what two have done."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["IDLE", "Turn"]

#: Calls of another thread after which a thread that has made none meanwhile is taken to be done.
IDLE = 64


class _Thread:
    """Stands for a thread, and goes with it. Numbers of threads are used again."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    def __init__(self) -> None:
        self.token = _Thread()


_local = _Local()


class Turn:
    """The thread that trains, of one hook. Under the hook's lock, but for `here`."""

    def __init__(self) -> None:
        self._owner: Any = None  # weak reference
        self._passed = 0  # calls of others since the last of the owner's
        self.missed = 0

    def here(self) -> bool:
        """Whether the thread that asks has the turn."""
        return self._owner is not None and self._owner() is _local.token

    def vacant(self) -> bool:
        """Nobody has it: nobody ever had, or the thread has ended."""
        return self._owner is None or self._owner() is None

    def unused(self) -> bool:
        """No thread ever had it."""
        return self._owner is None

    def lost(self) -> bool:
        """The thread that had it has ended."""
        return self._owner is not None and self._owner() is None

    def idle(self) -> bool:
        """Who has it has done nothing for long."""
        return self._passed >= IDLE

    def take(self) -> None:
        """Gives the turn to the thread that asks."""
        self._owner = weakref.ref(_local.token)
        self._passed = 0

    def mine(self, between: bool) -> bool:
        """Takes the turn if it may be taken; False: it is another thread's, and the call is counted.

        Parameters
        ----------
        between
            No step is open, so that the turn may change without one that holds both.
        """
        owner = None if self._owner is None else self._owner()
        if owner is _local.token:
            self._passed = 0
            return True
        if owner is None or (between and self._passed >= IDLE):
            self.take()
            return True
        self.miss()
        return False

    def miss(self) -> None:
        """A call of a thread that has not the turn is counted."""
        self._passed += 1
        self.missed += 1

    def to_tell(self) -> int:
        """How many missed calls a gap has to be written for now: at the 1st, 2nd, 4th, 8th, ... of them; 0: none."""
        return 0 if self.missed & (self.missed - 1) else max(self.missed // 2, 1)
