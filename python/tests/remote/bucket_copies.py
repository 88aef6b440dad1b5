"""Copies of runs in buckets, and the time of who uploads them, for tests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from luff.remote import _uploader
from luff.remote._cache import Cache
from luff.remote._files import stream_of
from luff.remote._spool import Spool


def copy_of(store, run, folder, cache=1 << 30):
    """Fetches all of a run. Returns the spool, and the bytes of its files."""
    pool = ThreadPoolExecutor(4)
    spool = Spool(str(folder), f"{store.url}/{run.run_id}", store, run.run_id, "/socket", Cache(cache), pool)
    spool.open()
    return spool, contents(spool)


def contents(spool):
    found = {}
    for path in Path(spool.folder).rglob("*"):
        if not path.is_file() or path.name in ("mirror.json", "have.json", "whole"):
            continue
        name = str(path.relative_to(spool.folder))
        file = stream_of(*name.split("/")) if name.count("/") == 1 else None
        if file is not None and file.is_payload:
            size = path.stat().st_size
            for begin in range(0, size, 32 << 20):
                spool.need(file, begin, min(32 << 20, size - begin))
        found[name] = path.read_bytes()
    return found


def set_time(monkeypatch, **changed):
    """Changes functions of `time` for the uploader alone: other threads, as those of a server, wait as ever."""
    monkeypatch.setattr(_uploader, "time", SimpleNamespace(**{**vars(time), **changed}))


def clock_of_uploader(monkeypatch):
    """Its clock alone, in seconds from 0, which stands unless it is set."""
    clock = [0.0]
    set_time(monkeypatch, monotonic=lambda: clock[0])
    return clock
