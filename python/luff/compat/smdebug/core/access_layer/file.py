"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any

from luff._held_file import HeldFile

__all__ = ["SMDEBUG_TEMP_PATH_SUFFIX", "TSAccessFile", "get_temp_path", "write_text"]

SMDEBUG_TEMP_PATH_SUFFIX = ".tmp"


def get_temp_path(file_path: str) -> str:
    """Returns the path beside a file at which it is written before it gets its name."""
    return file_path + SMDEBUG_TEMP_PATH_SUFFIX


class TSAccessFile:
    """A file that is written beside its final path and moved there by `close`."""

    def __init__(self, path: str, mode: str = "wb") -> None:
        self.path = path
        self._temporary = get_temp_path(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        binary = "b" in mode
        self._file: Any = io.BufferedWriter(HeldFile(self._temporary), 1 << 18)
        if not binary:
            self._file = io.TextIOWrapper(self._file, encoding="utf-8")
        self.bytes = 0

    def write(self, parts: Iterable[Any]) -> tuple[int, int]:
        """Appends parts; returns where they begin and how long they are."""
        start = self.bytes
        for part in parts:
            self._file.write(part)
            self.bytes += len(part)
        return start, self.bytes - start

    def flush(self) -> None:
        """Flushes what is written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Moves the file to its final path."""
        if self._file.closed:
            return
        self._file.close()
        os.replace(self._temporary, self.path)

    def abandon(self) -> None:
        """Discards what is written."""
        self._file.close()
        try:
            os.unlink(self._temporary)
        except OSError:
            pass


def write_text(path: str, text: str) -> None:
    """Writes a whole file."""
    file = TSAccessFile(path, "w")
    file.write([text])
    file.close()
