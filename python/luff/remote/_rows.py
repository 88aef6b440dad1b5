"""Sealed metadata segments in a copy, of which only what was asked for is on disk.

Such a file has its whole length, and holes. Beside it lies ``NAME.have``, which lists what is there: it is written
before the file has a hole, and removed once there is none, so that a file without it is whole, or the beginning of one.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from luff.remote._disk import boot_id, write_at, write_whole
from luff.remote._ranges import Ranges

if TYPE_CHECKING:
    from luff.remote._files import File

_PAGE = 4096
_ASKS = 4  # after so many requests to one segment, the next brings the rest
_END = 64  # last bytes of a sealed file: readers take it for sealed once they are there
_MOST_TOLD = 200  # ranges in one answer


class Rows:
    """The segments with holes of one copy. **Not thread-safe.** Methods raise OSError."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sparse: dict[File, Ranges] = {}
        self._asks: dict[File, int] = {}
        self._distrusted: set[File] = set()

    def _path(self, file: File) -> str:
        return os.path.join(self._folder, file.path)

    def of(self, file: File, length: int) -> Ranges | None:
        """What there is of a segment of this length; None if it has no holes, or is not there to its end."""
        try:
            there = os.lstat(self._path(file)).st_size == length
        except OSError:
            there = False
        if not there:
            self.forget(file)
            return None
        if file not in self._sparse:
            try:
                with open(f"{self._path(file)}.have", "rb") as listed:
                    found = json.loads(listed.read())
                ranges = Ranges([(int(begin), int(end)) for begin, end in found["ranges"]])
                # Before the machine began again, the list may have reached the disk, and what it lists not.
                if found["boot"] != boot_id():
                    ranges = Ranges()
            except FileNotFoundError:
                return None
            except (ValueError, TypeError, KeyError):
                ranges = Ranges()  # whatever is there is fetched again
            self._sparse[file] = ranges
        return self._sparse[file]

    def has_holes(self, file: File) -> bool:
        """True for a segment that `of` or `make` has told of."""
        return file in self._sparse

    def was_sparse(self, file: File) -> bool:
        """True for a segment that has, or had before this process, holes."""
        return file in self._sparse or os.path.exists(f"{self._path(file)}.have")

    def forget(self, file: File) -> None:
        """The file is gone, or has no holes any more."""
        self._sparse.pop(file, None)
        self._asks.pop(file, None)
        self._distrusted.discard(file)
        try:
            os.unlink(f"{self._path(file)}.have")
        except OSError:
            pass

    def distrust(self, file: File) -> None:
        """All of a segment with holes is to be fetched, what there is, too: an index may have brought it.

        Once: what comes from then on is of the segment itself.
        """
        if file not in self._distrusted:
            self._distrusted.add(file)
            self._sparse[file] = Ranges()

    def make(self, file: File, length: int, pieces: list[tuple[int, bytes]]) -> None:
        """Makes a segment of these pieces. Readers see all of them or no file."""
        path = self._path(file)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(f"{path}~", flags, 0o600)
        try:
            os.ftruncate(fd, length)
            for at, data in pieces:
                write_at(fd, data, at)
        finally:
            os.close(fd)
        self._sparse[file] = Ranges([(at, at + len(data)) for at, data in pieces])
        self._note(file)
        os.replace(f"{path}~", path)

    def seal(self, fd: int, file: File, have: int, length: int, pieces: list[tuple[int, bytes]]) -> None:
        """Adds the end of a segment whose first bytes are there, and which somebody may be reading."""
        ranges = self._sparse.get(file)
        if ranges is None:
            ranges = self._sparse[file] = Ranges([(0, have)])
            self._note(file)
            os.ftruncate(fd, length)
        end = b""
        for at, data in pieces:
            if at + len(data) == length and len(data) >= _END:
                data, end = data[:-_END], data[-_END:]
            write_at(fd, data, at)
            ranges.add(at, at + len(data))
        if end:
            write_at(fd, end, length - len(end))
            ranges.add(length - len(end), length)
        self._note(file)

    def _note(self, file: File) -> None:
        listed = {"boot": boot_id(), "ranges": list(self._sparse[file])}
        write_whole(f"{self._path(file)}.have", json.dumps(listed).encode())

    def save(self) -> None:
        """Writes down what is there, for the next fetcher."""
        for file in self._sparse:
            self._note(file)

    def wanted(self, file: File, begin: int, end: int, footer: int, length: int) -> tuple[int, int]:
        """What to fetch for a reader that asks for this range, part of which is not there."""
        self._asks[file] = self._asks.get(file, 0) + 1
        if begin >= footer and self._asks[file] > _ASKS:
            return footer, length
        first = begin // _PAGE * _PAGE
        return max(first, footer) if begin >= footer else first, min(-(-end // _PAGE) * _PAGE, length)

    def told(self, file: File, begin: int) -> list[tuple[int, int]]:
        """Ranges that are there: the one with this byte, then others."""
        ranges = list(self._sparse[file])
        asked = [r for r in ranges if r[0] <= begin < r[1]]
        return (asked + [r for r in ranges if r not in asked])[:_MOST_TOLD]
