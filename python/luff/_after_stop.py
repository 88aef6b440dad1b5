"""What a process trains after a finding has stopped it: its script has swallowed `luff.StopTraining`, and goes on.

Nothing of it is recorded. It is counted, for the supervisor, which ends such a script, and for who reads the run
(docs/spec/control.md). A thread writes the number, so that the training waits for no disk.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["begin", "forget", "update", "write"]

_FILE = "after_stop"
_PAUSE_S, _MOMENT_S = 0.25, 0.5
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TELLING = 2  # updates: one may be of the step that was stopped


class _Counter:
    """The updates of this process from now on, in the folder of the worker that was stopped."""

    def __init__(self, folder: str, trains: Callable[[Any], bool]) -> None:
        self._trains = trains
        self._path = os.path.join(folder, _FILE)
        self._next = itertools.count(1)  # updates come from several threads
        self._updates = self._written = 0
        self._writing = threading.Lock()  # the end of the process may write while the thread does

    def add(self, optimizer: Any) -> None:
        if not self._trains(optimizer):
            return
        self._updates = number = next(self._next)
        if number == _TELLING:
            try:
                threading.Thread(target=self._follow, name="luff-after-stop", daemon=True).start()
            except RuntimeError:  # no thread can be had: the end of the process writes it
                pass

    def _follow(self) -> None:
        while _counter is self:
            self.write()
            time.sleep(_PAUSE_S)

    def write(self) -> None:
        """Writes the number if it is new; never raises, and waits a moment at most."""
        if not self._writing.acquire(timeout=_MOMENT_S):
            return
        try:
            self._write()
        finally:
            self._writing.release()

    def _write(self) -> None:
        updates = self._updates
        if updates < _TELLING or updates == self._written:
            return
        try:  # numbers grow, so what a reader meets is an old one, a new one, or nothing that it understands
            file = os.open(self._path, _FLAGS, 0o600)
            try:
                os.write(file, f"{updates}\n".encode())
            finally:
                os.close(file)
            self._written = updates
        except OSError:  # the disk is full, or the run is gone
            pass


_counter: _Counter | None = None


def begin(run: str, worker: int, trains: Callable[[Any], bool]) -> None:
    """Counts from now on, after the stop of a worker. In an interactive session people go on by themselves.

    `trains` tells whether an optimizer updates what the run watched: who fits something else to what was trained (a
    temperature, a probe) has not swallowed the stop.
    """
    global _counter
    if not hasattr(sys, "ps1"):
        _counter = _Counter(os.path.join(run, f"w{worker:04d}"), trains)


def update(optimizer: Any) -> None:
    """Called after an update that no hook records; never raises."""
    counter = _counter
    if counter is None:
        return
    try:
        counter.add(optimizer)
    except Exception:  # an optimizer whose parameters cannot be told: the deadline for leaving holds
        pass


def write() -> None:
    """Writes what was counted, at the end of the process."""
    counter = _counter
    if counter is not None:
        counter.write()


def forget(run: str = "", worker: int = 0) -> None:
    """Ends the count: what is trained is recorded again, into this run, or the process is a child.

    A run that goes on loses what was counted after its earlier stop.
    """
    global _counter
    _counter = None
    if run:
        try:
            os.unlink(os.path.join(run, f"w{worker:04d}", _FILE))
        except OSError:
            pass
