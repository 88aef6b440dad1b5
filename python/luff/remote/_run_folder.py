"""Files of a run directory, as an upload reads them: links are not followed, nothing but files is opened."""

from __future__ import annotations

import json
import os
import stat

from luff.remote._errors import Refused
from luff.remote._files import is_run_id

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
