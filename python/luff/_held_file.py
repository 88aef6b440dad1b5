"""A file that is open for long in the process of a training, which may close descriptors that it did not open.

A closed number is given to the next file that is opened. So each write proves that the number leads to the same file
still, and a number that does not is neither written nor closed. What the capture session has open is out of reach
anyway (docs/adr/0013).
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
from typing import Any

__all__ = ["HeldFile"]


class HeldFile(io.RawIOBase):
    """A new or emptied file, for writing; `io.BufferedWriter` and `io.TextIOWrapper` go around it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        end = 4096 if limit < 0 else min(limit, 4096)
        try:  # where new files of the training are not put
            high = fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, end - min(256, end // 4))
        except OSError:
            pass
        else:
            os.close(self._fd)
            self._fd = high
        self._identity = self._behind()

    def _behind(self) -> tuple[int, int] | None:
        try:
            info = os.fstat(self._fd)
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        """Write to the file, if it is ours.

        Raises
        ------
        OSError
            When the number leads elsewhere.
        """
        if self._behind() != self._identity:
            raise OSError(errno.EBADF, "the process has closed a descriptor that was luff's", self.name)
        return os.write(self._fd, data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._behind() == self._identity:
            os.close(self._fd)
        self._fd = -1
