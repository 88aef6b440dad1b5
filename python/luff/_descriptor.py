"""Long-lived descriptors in a training process, which may close descriptors that it did not open.

A closed number is reused for the next file that is opened. So each use checks that the number still refers to the same
file; if not, it is neither read, written nor closed.
"""

from __future__ import annotations

import fcntl
import os
import resource

__all__ = ["Descriptor"]


class Descriptor:
    """A newly opened descriptor, moved to a number that new files of the training do not get, if possible.

    Attributes
    ----------
    number
        Negative once it is closed.
    """

    def __init__(self, number: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        end = 4096 if limit < 0 else min(limit, 4096)
        try:
            self.number = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, end - min(256, end // 4))
        except OSError:
            self.number = number
        else:
            os.close(number)
        self._identity = self._behind()

    def _behind(self) -> tuple[int, int] | None:
        try:
            info = os.fstat(self.number)
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def is_ours(self) -> bool:
        """Whether the number still refers to what was opened."""
        return self.number >= 0 and self._behind() == self._identity

    def close(self) -> None:
        """Closes it, if it is ours."""
        if self.is_ours():
            os.close(self.number)
        self.number = -1
