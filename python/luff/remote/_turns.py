"""Threads that do what waits, in its order, and are no more than it takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Nothing was begun for so long although something waits: all threads wait for the bucket, so another one begins.
_PATIENCE_S = 0.002


class Turns:
    """What is added is begun in its order, by at most `most` threads. Thread-safe.

    One thread is enough for a bucket that answers at once, and costs less than several that take turns in one
    interpreter. For one whose answers take their time, about so many work that every `_PATIENCE_S` one begins. What
    hangs holds up one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._threads = 0
        self._idle = 0
        self._working = 0
        self._watched = False  # a thread that is free sees to what waits
        self._begun_at = 0.0  # monotonic: when something was begun last
        self._ended = False

    def add(self, task: Callable[[], None]) -> None:
        """Adds something to do, which tells by itself what goes wrong. Nothing more is done after `end`."""
        with self._lock:
            if not self._ended:
                self._waiting.append(task)
                self._see_to_it()

    def go_on(self) -> None:
        """Begins a thread if something waits and there was none to be had; call it now and then."""
        with self._lock:
            if self._waiting:
                self._see_to_it()

    @property
    def waiting(self) -> bool:
        """Whether something is not begun yet."""
        return bool(self._waiting)

    def end(self) -> None:
        """Begins nothing more. Threads end when they have done what they are at."""
        with self._lock:
            self._ended = True
            self._waiting.clear()
            self._news.notify_all()

    def _see_to_it(self) -> None:
        """Has a thread that is free watch whether what waits is begun. One watches at a time."""
        if self._watched or self._ended:
            return
        if self._idle:
            self._watched = True
            self._news.notify()
        elif self._threads < self._most:
            self._watched = True
            self._threads += 1
            try:
                threading.Thread(target=self._run, name="luff-turn", daemon=True).start()
            except RuntimeError:  # the machine has no more threads: those that are there do it, or `go_on`
                self._threads -= 1
                self._watched = False

    def _run(self) -> None:
        with self._lock:
            watches = True
            while not self._ended:
                if not self._waiting:
                    if watches:
                        self._watched = False
                    self._idle += 1
                    self._news.wait()
                    self._idle -= 1
                    watches = True  # that is what it was woken for
                    continue
                now = time.monotonic()
                pause = self._begun_at + _PATIENCE_S - now
                if watches and self._working and pause > 0:
                    self._news.wait(pause)
                    continue
                if watches:
                    watches = self._watched = False
                task, self._begun_at = self._waiting.popleft(), now
                self._working += 1
                if self._waiting:
                    self._see_to_it()
                self._lock.release()
                try:
                    task()
                except Exception:
                    pass  # it has told what it could
                finally:
                    self._lock.acquire()
                    self._working -= 1
            self._threads -= 1
