"""Which sealed segments of an upload share an index."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from luff.remote._sealed import INDEXED, MAX_INDEX, Indexed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from luff.remote._files import File
    from luff.remote._head import Entry

_ROOM = MAX_INDEX - (1 << 20)
_PER_PIECE = 24  # bytes in the header


class Indexes:
    """Adds segments to the last index until it is full. An index never changes: a longer one has another name.

    Who takes an upload over begins another one. **Not thread-safe.**
    """

    def __init__(self) -> None:
        self._name = ""
        self._segments: list[Indexed] = []

    def add(self, ready: list[Indexed], files: dict[File, Entry]) -> Iterator[tuple[str, str, list[Indexed]]]:
        """Yields name, the name of the index that it replaces or "", and contents of each index that is to be put."""
        ready = list(ready)
        while ready:
            kept = [s for s in self._segments if s.file in files and files[s.file].index == self._name]
            before = self._name
            if len(kept) >= INDEXED or sum(map(_weight, kept)) + _weight(ready[0]) > _ROOM:
                kept, before = [], ""
            room = _ROOM - sum(map(_weight, kept))
            while ready and len(kept) < INDEXED and (room := room - _weight(ready[0])) >= 0:
                kept.append(ready.pop(0))
            name = secrets.token_hex(8)
            yield name, before, kept
            self._name, self._segments = name, kept


def _weight(segment: Indexed) -> int:
    return sum(len(data) + _PER_PIECE for _, data in segment.pieces)
