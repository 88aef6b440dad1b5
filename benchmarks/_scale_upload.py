"""Uploads many live runs from one process, each as `luff sync` does: _scale_upload.py RUNS BASE FIRST EVERY.

Takes every EVERY-th run of the folder, from FIRST on. Prints one JSON object a second: heads put so far, by how many
seconds the latest flush came too late, and of each flush the run, begin and end in Unix seconds. Ends when all runs
have ended and are uploaded.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from luff.remote._live import any_writes
from luff.remote._store import open_store
from luff.remote._uploader import Uploader

FLUSH_S = 2.0


def main(folder: str, base: str, first: int, every: int) -> None:
    runs = sorted(Path(folder).glob("run*"))[first::every]
    uploaders = []
    for run in runs:
        uploader = Uploader(str(run), open_store(base), interval_s=FLUSH_S)
        uploader.begin()
        uploaders.append((uploader, str(run)))
    begun = time.monotonic()
    # Flushes are spread over the interval, as those of jobs that began at different times are.
    due = [begun + FLUSH_S * i / len(runs) for i in range(len(runs))]
    live = set(range(len(runs)))
    told, late = begun, 0.0
    flushed: list[tuple[str, float, float]] = []
    while live:
        for i in sorted(live):
            if (now := time.monotonic()) < due[i]:
                time.sleep(due[i] - now)
            late = max(late, time.monotonic() - due[i])
            due[i] = max(due[i] + FLUSH_S, time.monotonic())
            uploader, run = uploaders[i]
            at = time.time()
            if any_writes(run):
                uploader.flush("live")
            else:
                uploader.flush("ended")
                uploader.end()
                uploader.close()
                live.discard(i)
            flushed.append((Path(run).name, at, time.time()))
            if time.monotonic() - told > 1 or not live:
                told = time.monotonic()
                heads = sum(one.sequence for one, _ in uploaders)
                print(json.dumps({"heads": heads, "late_s": late, "flushed": flushed}), flush=True)
                late = 0.0
                flushed.clear()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
