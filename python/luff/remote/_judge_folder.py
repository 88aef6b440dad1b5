"""The folder in which who judges runs of a bucket keeps copies of them: one process has it at a time."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time

from luff.remote._disk import write_whole
from luff.remote._errors import Refused

_LOCK_S = 15.0  # for the process before, which is being ended


def hold_judge(root: str, state: str) -> int:
    """Takes the folder; returns a descriptor that holds it. Raises Refused if another process has it; OSError.

    `state`: the folder as the user names it.
    """
    held = os.open(os.path.join(root, "judge"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(held)
                raise Refused(
                    "another luff watch judges these runs; give shards (--shard 0/2), or another --state: "
                    + state
                ) from None
            time.sleep(0.05)


def read_instance(root: str) -> str:
    """Whose commits are ours: 32 hexadecimal digits, the same after a restart with the same state."""
    path = os.path.join(root, "instance")
    try:
        with open(path) as file:
            text = file.read(64).strip()
    except FileNotFoundError:
        text = ""
    if re.fullmatch(r"[0-9a-f]{32}", text) is None:
        text = secrets.token_hex(16)
        write_whole(path, text.encode())
    return text
