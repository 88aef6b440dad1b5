"""A file that is open for long in the process of a training, which may close descriptors that it did not open.

What the capture session has open is out of reach anyway (docs/adr/0013).
"""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from luff._descriptor import Descriptor

__all__ = ["HeldFile"]


class HeldFile(io.RawIOBase):
    """A new or emptied file, for writing; `io.BufferedWriter` and `io.TextIOWrapper` go around it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = path
        self._descriptor = Descriptor(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        )

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor.number

    def write(self, data: Any) -> int:
        """Write to the file, if it is ours.

        Raises
        ------
        OSError
            When the number leads elsewhere.
        """
        if not self._descriptor.is_ours():
            raise OSError(errno.EBADF, "the process has closed a descriptor that was luff's", self.name)
        return os.write(self._descriptor.number, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._descriptor.close()
