"""Whether a worker of a run still writes, from its live page (docs/spec/run-format.md, 6)."""

from __future__ import annotations

import os
import struct

_MAGIC = b"LUFFLIVE"
_LAYOUT = 2
# magic, layout, worker, host, boot (2), pid, start time
_IDENTITY = struct.Struct("<8sIIQQQQQ")
_NAMESPACE_AT = 76
_STATE_AT = 128 + 48  # of the news
_ENDED = 3


def writes(folder: str) -> bool:
    """True if the process that writes a worker's or host's folder is seen to run on this host."""
    try:
        with open(os.path.join(folder, "live"), "rb") as file:
            page = file.read(192)
    except OSError:
        return False
    if len(page) < 192:
        return False
    magic, layout, _, _, _, _, pid, started = _IDENTITY.unpack_from(page)
    if magic != _MAGIC or layout != _LAYOUT or page[_STATE_AT] == _ENDED:
        return False
    (namespace,) = struct.unpack_from("<I", page, _NAMESPACE_AT)
    try:
        if namespace and os.stat("/proc/self/ns/pid").st_ino != namespace:
            return False
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name of the program, in brackets, may hold anything.
            fields = stat.read(4096).rpartition(b")")[2].split()
    except OSError:
        return False
    return len(fields) > 19 and int(fields[19]) == started


def any_writes(run: str) -> bool:
    """True if any worker of the run is seen to write."""
    try:
        names = os.listdir(run)
    except OSError:
        return False
    return any(name[:1] == "w" and name[1:].isdigit() and writes(os.path.join(run, name)) for name in names)
