"""From a faulty step to the raised stop, through a bucket.

Each job trains under `luff run --sync`, without rules, and knows a key. One `luff watch URL --on-finding stop --key`
judges all of them from the bucket, and answers a finding of severity stop by a signed request. The job takes the time
itself: from the begin of the step whose loss is NaN to the exception. Some jobs run at once.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _gates import luff_command, say

STOPS = int(os.environ.get("LUFF_BENCH_STOPS", "100"))
AT_ONCE = int(os.environ.get("LUFF_BENCH_AT_ONCE", "4"))
LIMIT_S = 10.0
LONGEST_S = 180.0
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
    draw = random.Random(1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as text:
        folder = Path(text)
        env = os.environ | {"LUFF_CACHE": str(folder / "cache"), "LUFF_PYTHON": sys.executable}
        words = [luff_command(), "keys", "new", folder / "key", "--id", "boss", "--may", "stop"]
        (folder / "luff.toml").write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
        (folder / "train.py").write_text(JOB)
        words = [luff_command(), "watch", f"file://{folder}/bucket", "--state", folder / "state"]
        with (folder / "watch").open("wb") as said:
            watch = subprocess.Popen(
                [*words, "--on-finding", "stop", "--key", folder / "key"], stdout=said, stderr=said, env=env
            )
        try:
            # At any moment between two flushes.
            faulty = [5 + draw.uniform(0, 2.5) for _ in range(STOPS)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                took = list(pool.map(lambda one: _one(folder, env, *one), enumerate(faulty)))
        finally:
            watch.send_signal(signal.SIGTERM)
            watch.wait(60)
    took.sort()
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    name = f"step to raised stop, {STOPS} signed stops by one watch, {AT_ONCE} jobs at once: p99, s"
    ok = p99 <= LIMIT_S
    print(f"  {name:<84} {p99:10.4g}  limit {LIMIT_S:g}  {say(ok)}")
    print(
        f"  least {took[0]:.2f}, median {statistics.median(took):.2f}, second {took[-min(2, len(took))]:.2f}, "
        f"most {took[-1]:.2f}; load {os.getloadavg()[0]:.1f}"
    )
    results = [{"name": name, "value": p99, "values": took}]
    return results, [{"name": name, "value": p99, "limit": LIMIT_S, "ok": ok}]


def _one(folder: Path, env: dict[str, str], number: int, faulty_after: float) -> float:
    """Trains until it is stopped. Returns the seconds, or infinity if nobody stopped it."""
    words = [luff_command(), "run", "--run", folder / f"run{number}", "--rules", "none"]
    words += ["--config", folder / "luff.toml", "--sync", f"file://{folder}/bucket", "--"]
    with (folder / f"log{number}").open("wb") as log:
        job = subprocess.Popen(
            [*words, sys.executable, folder / "train.py", str(faulty_after)],
            stdout=subprocess.PIPE, stderr=log, text=True, env=env,
        )  # fmt: skip
    try:
        said = job.communicate(timeout=LONGEST_S)[0].split()
        seconds = float(said[0]) if said else float("inf")
    except subprocess.TimeoutExpired:
        seconds = float("inf")
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait(60)
    print(f"  stop {number + 1:3} of {STOPS}: {seconds:5.2f} s", flush=True)
    return seconds
