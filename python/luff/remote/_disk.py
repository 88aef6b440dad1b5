"""Writing the files of a copy."""

from __future__ import annotations

import os


def write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file, so that readers see all of it or nothing."""
    temporary = f"{path}~"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_at(fd, data, 0)
    finally:
        os.close(fd)
    os.replace(temporary, path)


def boot_id() -> str:
    """Another one after each start of the machine; "" if it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip().replace("-", "")
    except OSError:
        return ""
