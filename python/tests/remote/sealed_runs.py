"""Runs for tests that encrypt them: each tells a canary, which is searched in what was put."""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor

from bucket_copies import contents
from luff.remote._run_store import reading
from luff.remote._spool import Cache, Spool
from luff.remote._upload_key import uploading
from luff.remote._uploader import Uploader

CANARY = b"canary-of-the-run-4e1c"


def fill(run):
    run.append("w0000/m-000001.lfm", CANARY * 5000)
    run.append("w0000/d-000001.lfd", CANARY * 600_000)  # more than a window
    run.append("w0001/d-000001.lfd", CANARY)
    run.append("rules/luff/findings.jsonl", b'{"what": "' + CANARY + b'"}\n')
    run.append("control/000001.json", b'{"reason": "' + CANARY + b'"}')
    text = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**text, "command": [CANARY.decode()]}))


def upload(run, store):
    uploader = Uploader(str(run.path), uploading(store, str(run.path), run.run_id))
    uploader.begin()
    uploader.flush()
    uploader.flush("ended")
    uploader.end()
    return uploader


def every_object(store):
    found = {}
    for prefix in ("runs/", "live/", "cards/", "keys/"):
        for one in store.objects(prefix, 1000):
            found[prefix + one.name] = store.get(prefix + one.name, 16 << 20)[0]
    return found


def fetched(store, run, folder):
    own, pool = reading(store, run.run_id), ThreadPoolExecutor(4)
    spool = Spool(str(folder), f"{store.url}/{run.run_id}", own, run.run_id, "/socket", Cache(1 << 30), pool)
    spool.open()
    return contents(spool)


def is_told(data):
    """True if an object tells the canary, also where it is packed."""
    found = [data]
    for at in range(len(data)):
        if data[at : at + 1] == b"\x78":
            try:
                found.append(zlib.decompressobj().decompress(data[at:], 1 << 20))
            except zlib.error:
                continue
    return any(CANARY in one for one in found)
