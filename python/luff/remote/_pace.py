"""How fast the values of a run grow: what decides whether they may travel in a head first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luff.remote._files import File

FAST = 1 << 19  # bytes a second of one folder
_OVER_S = 10.0  # what is older counts little


class Pace:
    """Bytes a second that each folder's values have grown by, of late. Of what was there at the first look: nothing."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._lengths: dict[File, int] = {}
        self._seconds = 0.0
        self._bytes: dict[tuple[str, int], float] = {}

    def look(self, lengths: dict[File, int], now: float) -> None:
        """`lengths` of all files with values; `now` in seconds of a clock that only goes on."""
        before, self._lengths = self._lengths, dict(lengths)
        at, self._at = self._at, now
        if at is None:
            return
        kept = math.exp((at - now) / _OVER_S)
        self._seconds = self._seconds * kept + now - at
        self._bytes = {folder: grown * kept for folder, grown in self._bytes.items()}
        for file, length in lengths.items():
            folder = file.kind, file.folder
            grown = max(0, length - before.get(file, 0))
            self._bytes[folder] = self._bytes.get(folder, 0.0) + grown

    def is_fast(self, file: File) -> bool:
        """Whether its folder's values grow by more than `FAST`."""
        return self._bytes.get((file.kind, file.folder), 0.0) > FAST * self._seconds
