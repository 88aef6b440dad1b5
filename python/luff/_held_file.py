"""A long-lived file in a training process, which may close descriptors that it did not open.

Files of the capture session are out of the process's reach anyway (docs/adr/0013).
"""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from luff._descriptor import Descriptor

__all__ = ["HeldFile"]


class HeldFile(io.RawIOBase):
    """A new or emptied file, for writing; wrap it in `io.BufferedWriter` or `io.TextIOWrapper`."""

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
        """Writes to the file.

        Raises
        ------
        OSError
            If the number now refers to another file.
        """
        if not self._descriptor.is_ours():
            raise OSError(errno.EBADF, "the process has closed a descriptor that was luff's", self.name)
        return os.write(self._descriptor.number, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._descriptor.close()
