"""How fast an upload may be."""

from __future__ import annotations

import threading
import time


class Limiter:
    """A token bucket over the bytes that are put. No limit if `bytes_per_s` is 0."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        if self._rate <= 0:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._rate
        time.sleep(max(0.0, begin - now))
