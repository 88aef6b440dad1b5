"""From a faulty step to the raised stop, through a bucket.

Each job trains under `luff run --sync`, without rules, and knows a key. Beside it, `luff check URL --follow` judges
what is in the bucket; its first finding of severity stop is answered by `luff request stop URL --key`. The job takes
the time itself: from the begin of the step whose loss is NaN to the exception.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import luff_command, say

STOPS = int(os.environ.get("LUFF_BENCH_STOPS", "30"))
LIMIT_S = 10.0
LONGEST_S = 90.0
JOB = """
import sys, time
import numpy as np
import luff.numpy

weights, faulty, number = {"w": np.ones(4, np.float32)}, None, 0
begun = time.monotonic()
try:
    with luff.numpy.attach(weights) as hook:
        while time.monotonic() - begun < 100:
            if faulty is None and time.monotonic() - begun > float(sys.argv[1]):
                faulty = time.monotonic()
            with hook.step() as step:
                step.gradients({"w": np.full(4, 0.1, np.float32)})
                step.loss(1.0 / (number + 1) if faulty is None else float("nan"))
            number += 1
            time.sleep(0.02)
except SystemExit:
    print(time.monotonic() - faulty, flush=True)
    raise
"""


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    draw, took = random.Random(1), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as text:
        for number in range(STOPS):
            folder = Path(text) / str(number)
            folder.mkdir()
            seconds = _one(folder, 5 + draw.uniform(0, 2.5))  # at any moment between two flushes
            took.append(seconds)
            print(f"  stop {number + 1:2} of {STOPS}: {seconds:5.2f} s", flush=True)
    took.sort()
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    name = f"step to raised stop, {STOPS} stops: p99, s"
    ok = p99 <= LIMIT_S
    print(f"  {name:<64} {p99:10.4g}  limit {LIMIT_S:g}  {say(ok)}   (median {statistics.median(took):.2f})")
    results = [{"name": name, "value": p99, "values": took}]
    return results, [{"name": name, "value": p99, "limit": LIMIT_S, "ok": ok}]


def _one(folder: Path, faulty_after: float) -> float:
    """Trains until it is stopped. Returns the seconds, or infinity if nobody stopped it."""
    luff, base = luff_command(), f"file://{folder}/bucket"
    env = os.environ | {"LUFF_CACHE": str(folder / "cache"), "LUFF_FETCH_IDLE_S": "5"}
    words = [luff, "keys", "new", folder / "key", "--id", "boss", "--may", "stop"]
    config = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    ).stdout
    (folder / "luff.toml").write_text(config)
    (folder / "train.py").write_text(JOB)
    log = folder / "log"
    with log.open("w") as err:
        words = [luff, "run", "--run", folder / "run", "--rules", "none", "--config", folder / "luff.toml"]
        job = subprocess.Popen(
            [*words, "--sync", base, "--", sys.executable, folder / "train.py", str(faulty_after)],
            stdout=subprocess.PIPE, stderr=err, text=True, env=env,
        )  # fmt: skip
    judge = None
    try:
        url = _url_of(job, log, base)
        judge = subprocess.Popen(
            [luff, "check", url, "--follow", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=env,
        )  # fmt: skip
        assert judge.stdout is not None
        for line in judge.stdout:
            if json.loads(line).get("severity") == "stop":
                words = [luff, "request", "stop", url, "--key", folder / "key", "--no-wait"]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                subprocess.run(words, check=True, env=env, timeout=LONGEST_S, **quiet)
                break
        said = job.communicate(timeout=LONGEST_S)[0].split()
        return float(said[0]) if said else float("inf")
    except subprocess.TimeoutExpired:
        return float("inf")
    finally:
        for process in (judge, job):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(60)


def _url_of(job: subprocess.Popen[str], log: Path, base: str) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end and job.poll() is None:
        found = [word for word in log.read_text().split() if word.startswith(f"{base}/")]
        if found and "this run is" in log.read_text():
            return found[0]
        time.sleep(0.05)
    raise RuntimeError(f"the job has not begun: {log.read_text()}")
