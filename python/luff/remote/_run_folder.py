"""Files of a run directory, as an upload reads them: links are not followed, nothing but files is opened."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from luff.remote import _files
from luff.remote._errors import Refused
from luff.remote._files import File, is_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RUN_JSON = 1 << 20


def read_run_json(run: str) -> tuple[bytes, str]:
    """Returns the bytes of a run's run.json and its run id. Raises Refused if the directory is no run."""
    path = os.path.join(run, "run.json")
    try:
        data = read_whole(path, MAX_RUN_JSON)
    except OSError as error:
        raise Refused(f"there is no run here ({error.strerror}): {run}") from None
    try:
        run_id = json.loads(data).get("run_id")
    except (ValueError, AttributeError, RecursionError):
        run_id = None
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise Refused(f"found no run_id of 32 hexadecimal digits, the file is damaged: {path}")
    return data, run_id


def open_regular(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(2, "not a regular file", path)
    return fd


def read_whole(path: str, most: int) -> bytes:
    fd = open_regular(path)
    try:
        return os.pread(fd, most, 0)
    finally:
        os.close(fd)


def lengths_of(run: str, payload: bool) -> dict[File, int]:
    """Files of a run, payload or all others, and their lengths now. Ascending by folder and sequence.

    Raises Refused if the directory is gone.
    """
    found: dict[File, int] = {}
    try:
        names = sorted(os.listdir(run))
    except OSError as error:
        raise Refused(f"the run directory is gone ({error.strerror}): {run}") from None
    for folder in names:
        if folder[:1] in ("w", "h") and folder[1:].isdigit():
            _measure(run, found, (_files.stream_of(folder, name) for name in _list(run, folder)), payload)
    if not payload:
        _measure(run, found, _files.text_files(), payload)
        for kind, folder in _files.numbered_folders():
            _measure(run, found, (_files.numbered_of(kind, name) for name in _list(run, folder)), payload)
    return found


def _list(run: str, folder: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(run, folder)))
    except OSError:
        return []


def _measure(run: str, found: dict[File, int], files: Iterable[File | None], payload: bool) -> None:
    for file in files:
        if file is None or file.is_payload != payload:
            continue
        try:
            info = os.lstat(os.path.join(run, file.path))
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            found[file] = min(info.st_size, _files.MAX_BYTES)
