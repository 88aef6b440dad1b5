"""The new file beside an object of a folder, ``NAME.HEX~``, before it is renamed to the object; also of who died then.

Nobody is harmed if one is removed that is still written: its put finds that out, and begins again.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import TYPE_CHECKING

from luff.remote import _files

if TYPE_CHECKING:
    from collections.abc import Callable

    from luff.remote._store import Store

_ASIDE = re.compile(r".+\.[0-9a-f]{16}~", re.DOTALL)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_DEPTH = 8
QUIET_S = 5.0  # hosts of one run begin at once: what is written just now is likely to be another one's
WITHIN_S = 2.0  # a run may have a folder for each of 100,000 files: a job's end waits for no look at them all


def write_aside(
    folder: int, name: str, data: bytes, keep: Callable[[int], None]
) -> tuple[str, os.stat_result]:
    """Writes an object beside its place, under a name that nothing has. Returns that, and what it is.

    `keep`: called with the file before it is closed. Raises OSError.
    """
    aside = f"{name}.{secrets.token_hex(8)}~"
    fd = os.open(aside, _NEW, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()  # the etag is of the whole file
            info = os.fstat(fd)
            keep(fd)
    except OSError:
        drop_aside(folder, aside)
        raise
    return aside, info


def drop_aside(folder: int, aside: str) -> None:
    try:
        os.unlink(aside, dir_fd=folder)
    except OSError:
        pass


def remove_asides(folder: int, before_unix_ns: int, end: float, depth: int = _MAX_DEPTH) -> None:
    """Removes those in an open folder, and below it, into which nobody has written since then. Until `end` (monotonic).

    Follows no link. What cannot be looked at or removed stays.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:  # one after the other: there may be many
                if time.monotonic() > end:
                    return
                _remove_one(folder, entry, before_unix_ns, end, depth)
    except OSError:
        return


def _remove_one(folder: int, entry: os.DirEntry[str], before_unix_ns: int, end: float, depth: int) -> None:
    try:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                _remove_below(folder, entry.name, before_unix_ns, end, depth - 1)
        elif _ASIDE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            if os.stat(entry.name, dir_fd=folder, follow_symlinks=False).st_mtime_ns <= before_unix_ns:
                os.unlink(entry.name, dir_fd=folder)
    except OSError:
        pass


def _remove_below(folder: int, name: str, before_unix_ns: int, end: float, depth: int) -> None:
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        remove_asides(inner, before_unix_ns, end, depth)
    finally:
        os.close(inner)


def clean_run(store: Store, run_id: str, older_s: float = QUIET_S, within_s: float = WITHIN_S) -> None:
    """Removes what died with who put something of this run, if nobody has written to it for so long. Never raises.

    `within_s`: what it has not come to then stays for the next one, or for who prunes.
    """
    end = time.monotonic() + within_s
    for prefix in _files.prefixes(run_id):
        store.clean(prefix, older_s, end - time.monotonic())
