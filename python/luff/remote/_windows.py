"""Parts of windows, and which windows are put again as one part so that the manifest of a long run stays short."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from luff.remote._files import WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from luff.remote._files import File
    from luff.remote._head import Entry

# Of all payload. Each head has them all: 30 KB, and 9 ms to pack them. Readers refuse one that has 32 times as many.
MOST_PARTS = 1 << 13


def parts_of_window(entry: Entry, begin: int) -> range:
    """Positions in `ends` of the parts of a full window. `begin`: where it begins."""
    return range(bisect_right(entry.ends, begin), bisect_left(entry.ends, begin + WINDOW) + 1)


def windows_to_join(files: dict[File, Entry]) -> Iterator[tuple[File, int]]:
    """Full windows of payload that are in several parts: where they begin, the oldest first, until few enough parts
    are left if all of these are joined. Each may be joined before the next one is asked for.
    """
    over = sum(len(entry.ends) for file, entry in files.items() if file.is_payload) - MOST_PARTS
    for file, entry in files.items():
        if over <= 0:
            return
        if not file.is_payload or entry.lost or len(entry.ends) <= -(-entry.in_parts // WINDOW):
            continue
        for begin in range(0, entry.in_parts - WINDOW + 1, WINDOW):
            parts = len(parts_of_window(entry, begin))
            if over > 0 and parts > 1:
                over -= parts - 1
                yield file, begin
