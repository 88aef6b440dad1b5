"""Which payload of all copies is on disk, and what is not."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from luff.remote._errors import BucketError

if TYPE_CHECKING:
    from luff.remote._files import File
    from luff.remote._spool import Spool

_IN_USE_S = 60.0  # a block that was asked for so lately is being read


class Later(BucketError):
    """Not uploaded yet."""


class Gone(BucketError):
    """It will never be there: deleted before it was uploaded."""


class Cache:
    """Which blocks of payload are on disk, the longest unused first. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[Spool, File, int], tuple[int, float]] = OrderedDict()
        self._bytes = 0

    def use(self, spool: Spool, file: File, block: int, size: int, now: float | None = None) -> None:
        with self._lock:
            key = (spool, file, block)
            before = self._blocks.pop(key, (0, 0.0))[0]
            self._blocks[key] = (size, time.monotonic() if now is None else now)
            self._bytes += size - before

    def holds(self, spool: Spool, file: File, block: int) -> bool:
        with self._lock:
            return (spool, file, block) in self._blocks

    def drop(self, spool: Spool) -> None:
        """The copy was removed."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] is spool]:
                self._bytes -= self._blocks.pop(key)[0]

    def evict(self) -> None:
        """Punches out what was unused for longest, until the rest fits; nothing that may be being read."""
        while True:
            with self._lock:
                if self._bytes <= self._most or not self._blocks:
                    return
                key, (size, used) = next(iter(self._blocks.items()))
                if time.monotonic() - used < _IN_USE_S:
                    return
                del self._blocks[key]
                self._bytes -= size
            spool, file, block = key
            if not spool.forget(file, block):
                self.use(spool, file, block, size)
