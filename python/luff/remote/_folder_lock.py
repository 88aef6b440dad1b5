"""The lock of conditional puts into a folder. Nobody who holds it keeps the others from it for long.

A process may be stopped at any instruction (SIGSTOP, a debugger, a frozen container) and go on an hour later, in the
belief that it still has the lock. So the lock has numbers, ``.luff-lock``, ``.luff-lock-1`` and so on, of which the
highest counts, and who has it

1. says in it which file it is about to rename, then looks whether its number is still the highest, and leaves if not;
2. looks at the object, and renames that file to it.

Who waits for 5 s while the lock says the same makes the next number. Whoever gets that first removes the file that the
one before has named, and then its lock. So the rename of the one that was stopped either came before, or fails. One
that was only slow begins its put again: a lock that is taken too early costs time, and no object.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from luff.remote._errors import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK = ".luff-lock"
PATIENCE_S = 5.0
_MOST_S = 60.0  # behind others that are alive
_PAUSE_S = (0.0005, 0.01)
_MAX_RECORD = 4096
_MAX_NAME = 255  # bytes, of Linux's file systems
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ASIDE = re.compile(
    r"(?:[^/\0\n]+/){0,8}[^/\0\n]+\.[0-9a-f]{16}~"
)  # what FolderStore writes, before its rename


class FolderLock:
    """Of one bucket. **Thread-safe**: of two threads, too, only one has it.

    Parameters
    ----------
    remove
        Removes a file by its path in the bucket, unless it is gone, and follows no link.
    """

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove

    @contextmanager
    def held(self, root: int, aside: str) -> Iterator[None]:
        """Holds it in an open folder, to rename the file `aside`, a path in the bucket. Raises OSError, Unreachable.

        If it was taken from us, the rename fails: that file is gone.
        """
        fd = self._take(root, aside)
        try:
            yield
        finally:
            os.close(fd)

    def _take(self, root: int, aside: str) -> int:
        end, late = time.monotonic() + _MOST_S, False
        while not late:
            late = time.monotonic() >= end  # perhaps stopped meanwhile ourselves: once more
            number, fd = self._open(root)
            kept = False
            try:
                if not self._wait(root, number, fd, end):
                    continue
                os.pwrite(fd, os.fsencode(aside) + b"\n", 0)
                if not _is_newest(root, number, fd):
                    continue
                self._end_those_before(root, number)
                kept = _is_newest(root, number, fd)
                if kept:
                    return fd
            finally:
                if not kept:
                    os.close(fd)
        raise Unreachable(f"others hold the lock of the folder again and again, for {_MOST_S:g} s: {LOCK}")

    def _open(self, root: int) -> tuple[int, int]:
        """The newest lock, made if there is none: its number, and a descriptor."""
        while True:
            number = max(_numbers(root), default=-1)
            if number < 0:
                number = 0
                _make(root, number)
            try:
                fd = os.open(_name(number), _FLAGS, dir_fd=root)
            except FileNotFoundError:  # a newer one is there by now
                continue
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return number, fd
            os.close(fd)
            raise Refused(f"the lock of the bucket is no file; remove it: {_name(number)}")

    def _wait(self, root: int, number: int, fd: int, end: float) -> bool:
        """Waits for a lock. False if there is a newer one now, or none of its holders had an end."""
        said, patience = b"", float("-inf")
        pause = _PAUSE_S[0]
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return True
            now, record = time.monotonic(), os.pread(fd, _MAX_RECORD, 0)
            if record != said or patience == float("-inf"):
                said, patience = record, now + PATIENCE_S
            if now > end or not _is_there(root, number, fd):
                return False
            if now > patience:
                _make(root, number + 1)
                return False
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_PAUSE_S[1], pause * 2)

    def _end_those_before(self, root: int, number: int) -> None:
        """Sees to it that no holder of an older lock renames anything any more."""
        for before in _numbers(root):
            if before >= number:
                continue
            try:
                fd = os.open(_name(before), _FLAGS, dir_fd=root)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                aside = ""  # a link, which no holder made
            else:
                aside = _aside_of(fd)
            try:
                if aside:
                    self._remove(aside)
            except Refused as error:
                # No folder leads there, so no holder renames it. No right is another thing.
                if not isinstance(error.__context__, NotADirectoryError):
                    raise
            try:
                os.unlink(_name(before), dir_fd=root)
            except FileNotFoundError:
                pass


def _aside_of(fd: int) -> str:
    """What a lock names, and closes it; "" if a holder would not have named it. A stranger may have written it."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        aside = os.pread(fd, _MAX_RECORD, 0).split(b"\n")[0].decode(errors="replace")
    finally:
        os.close(fd)
    words = aside.split("/")
    usable = _ASIDE.fullmatch(aside) and not {".", ".."} & set(words)
    return aside if usable and all(len(os.fsencode(word)) <= _MAX_NAME for word in words) else ""


def _name(number: int) -> str:
    return f"{LOCK}-{number}" if number else LOCK


def _numbers(root: int) -> list[int]:
    found = []
    for name in os.listdir(root):
        if name == LOCK:
            found.append(0)
        elif name.startswith(LOCK + "-") and re.fullmatch("[1-9][0-9]{0,8}", name[len(LOCK) + 1 :]):
            found.append(int(name[len(LOCK) + 1 :]))
    return found


def _make(root: int, number: int) -> None:
    try:
        os.close(os.open(_name(number), _FLAGS | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=root))
    except FileExistsError:  # another one that waits was faster
        pass


def _is_newest(root: int, number: int, fd: int) -> bool:
    """Whether there was no later lock when this was called. A list has all that is there while it is made, and the
    newest one is never removed.
    """
    return max(_numbers(root), default=-1) == number and _is_there(root, number, fd)


def _is_there(root: int, number: int, fd: int) -> bool:
    """Whether an open lock still has its name."""
    try:
        there = os.stat(_name(number), dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
