"""Reads what others may have written: deeply nested JSON, names that lead anywhere. C++: base/json,
base/bounded_read.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parses `text`; raises ValueError also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are too deep in one another") from None


def read_regular(root: str | os.PathLike[str], name: str, limit: int) -> bytes:
    """Reads a file below `root`, opening its path name by name: no link, pipe or device, at most `limit` bytes.

    Raises OSError for any other file, ValueError if it is larger.
    """
    path = os.path.join(root, name)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        *folders, last = name.split("/")
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"found something that is no regular file: {path}")
        if info.st_size > limit:
            raise ValueError(f"found {info.st_size} bytes, expected at most {limit}: {path}")
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(limit)
    finally:
        os.close(file)
