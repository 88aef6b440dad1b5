"""Whether a worker of a run still writes, from its live page (docs/spec/run-format.md, 6)."""

from __future__ import annotations

import os
import struct
import time

from luff.remote._disk import boot_id

_MAGIC = b"LUFFLIVE"
_LAYOUT = 2
# magic, layout, worker, host, boot (2), pid, start time
_IDENTITY = struct.Struct("<8sIIQQQQQ")
_NAMESPACE_AT = 76
_STATE_AT = 128 + 48  # of the news
_ENDED = 3
_QUIET_S = 60.0  # a writer beats every 5 s; readers count one as lost after as long


def writes(folder: str) -> bool:
    """True if the process that writes a worker's folder runs, or cannot be seen from here and wrote lately.

    It cannot be seen on another machine, from another container, or where the page is left empty.
    """
    try:
        with open(os.path.join(folder, "live"), "rb") as file:
            page = file.read(192)
    except OSError:
        return False
    if len(page) < 192:
        return _wrote_lately(folder)
    magic, layout, _, _, boot, boot_end, pid, started = _IDENTITY.unpack_from(page)
    if magic != _MAGIC or layout != _LAYOUT:
        return _wrote_lately(folder)
    if page[_STATE_AT] == _ENDED:
        return False
    (namespace,) = struct.unpack_from("<I", page, _NAMESPACE_AT)
    if f"{boot:016x}{boot_end:016x}" != boot_id() or namespace not in (0, _namespace()):
        return _wrote_lately(folder)
    return _runs(pid, started)


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _wrote_lately(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            newest = max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0)
    except OSError:
        return False
    return abs(time.time() - newest) < _QUIET_S


def _runs(pid: int, started: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name of the program, in brackets, may hold anything.
            fields = stat.read(4096).rpartition(b")")[2].split()
    except OSError:
        return False
    # One that has ended, and for which nobody has waited yet, writes nothing.
    return len(fields) > 19 and int(fields[19]) == started and fields[0] not in (b"Z", b"X")


def any_writes(run: str) -> bool:
    """True if any worker of the run, or a process that samples its machine, is seen to write."""
    try:
        names = os.listdir(run)
    except OSError:
        return False
    return any(
        name[:1] in ("w", "h") and name[1:].isdigit() and writes(os.path.join(run, name)) for name in names
    )
