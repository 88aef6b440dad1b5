"""What an upload notes in the folder `sync` of its run, for programs of its host."""

from __future__ import annotations

import json
import os
from typing import Any

from luff.remote._files import File
from luff.remote._run_folder import open_regular

_MAX_NOTE = 4 << 20
_WRITE_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def write_note(run: str, name: str, text: dict[str, Any]) -> None:
    """Replaces a note, unless the run cannot be written."""
    folder = os.path.join(run, "sync")
    path = os.path.join(folder, name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.open(f"{path}~", _WRITE_ANEW, 0o600), "w") as file:
            json.dump(text, file)
        os.replace(f"{path}~", path)
    except OSError:
        pass


def values_elsewhere(run: str, url: str) -> str:
    """URL of the run in another bucket than `url` that has values which are on this host no more; "" if none has."""
    try:
        with open(open_regular(os.path.join(run, "sync", "uploaded.json")), "rb") as file:
            told = json.loads(file.read(_MAX_NOTE))
        elsewhere = str(told["url"])
        files = [File("w", int(worker), "d", int(number)) for worker, number, _ in told["payload"]]
        gone = int(told.get("gone", 0)) > 0
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    if elsewhere == url:
        return ""
    gone = gone or any(not os.path.lexists(os.path.join(run, file.path)) for file in files)
    return elsewhere if gone else ""
