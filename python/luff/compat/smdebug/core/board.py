"""Writes files for TensorBoard: one writer for each mode, one file for each step that has something."""

from __future__ import annotations

import os
import re
import socket
import time
from typing import Any

import numpy as np

from luff.compat.smdebug.core.access_layer.file import TSAccessFile
from luff.compat.smdebug.core.events import file_version_event, histogram_event, scalar_event

__all__ = ["Board"]

_BINS = 30
_NOT_IN_TAGS = re.compile(r"[^-/\w.]", re.ASCII)


def _tag(name: str) -> str:
    return _NOT_IN_TAGS.sub("_", name).lstrip("/")


class Board:
    """Writes files for TensorBoard below a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._open: dict[str, TSAccessFile] = {}

    def _file(self, mode: str, step: int) -> TSAccessFile:
        file = self._open.get(mode)
        if file is None:
            name = f"{step:012d}_{os.getpid()}_{socket.gethostname()}.tfevents"
            file = self._open[mode] = TSAccessFile(os.path.join(self.directory, mode, name))
            file.write([file_version_event(time.time())])
        return file

    def scalar(self, mode: str, step: int, name: str, value: float, wall_time: float | None = None) -> None:
        """Adds a number."""
        at = time.time() if wall_time is None else wall_time
        self._file(mode, step).write([scalar_event(_tag(name), float(value), at, step)])

    def histogram(self, mode: str, step: int, collection: str, name: str, value: Any) -> None:
        """Adds a histogram, unless a value is not finite."""
        x = np.asarray(value)
        if x.dtype.kind not in "iuf" or x.size == 0:
            return
        x = x.astype(np.float64).ravel()
        low, high = float(x.min()), float(x.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            return
        counts, edges = np.histogram(x, bins=_BINS if low < high else 1)
        statistics = (low, high, float(x.size), float(x.sum()), float(np.square(x).sum()))
        record = histogram_event(
            _tag(f"{collection}/{name}"), statistics, edges[1:], counts, time.time(), step
        )
        self._file(mode, step).write([record])

    def close(self) -> None:
        """Closes the open files, which then appear under their names."""
        for file in self._open.values():
            file.close()
        self._open.clear()
