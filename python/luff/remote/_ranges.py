"""Which bytes of a file are there."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranges:
    """Ranges of bytes, ascending, none of which touch. **Not thread-safe.**"""

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in ranges or ():
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends, strict=True))

    def add(self, begin: int, end: int) -> None:
        """These bytes are there now."""
        if begin >= end:
            return
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What of these bytes is not there."""
        found = []
        at = bisect.bisect_right(self._ends, begin)
        while begin < end and at < len(self._begins) and self._begins[at] < end:
            if begin < self._begins[at]:
                found.append((begin, self._begins[at]))
            begin = self._ends[at]
            at += 1
        if begin < end:
            found.append((begin, end))
        return found

    def from_the_begin(self) -> int:
        """How many bytes are there without a hole, from byte 0 on."""
        return self._ends[0] if self._begins and self._begins[0] == 0 else 0
