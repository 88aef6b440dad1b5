"""From a faulty step to the raised stop, through a bucket.

Each job trains under `luff run --sync`, without rules, and knows a key. One `luff watch URL --on-finding stop --key`
judges all of them from the bucket, and answers a finding of severity stop by a signed request. The job takes the time
itself: from the begin of the step whose loss is NaN to the exception. Some jobs run at once.

A folder is the bucket, then an S3 server on loopback (moto, one request after the other), asked by HTTP.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _gates import luff_command, say

STOPS = int(os.environ.get("LUFF_BENCH_STOPS", "100"))
SERVED_STOPS = min(STOPS, 40)  # with a server
#: A Python that has obstore, moto and boto3; without it there is no server.
REMOTE = os.environ.get("LUFF_BENCH_REMOTE", "")
SERVERS = Path(__file__).resolve().parents[1] / "python" / "tests" / "remote"
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
    found = [_measure("a folder", "", {}, STOPS)]
    if REMOTE:
        with _served() as (base, variables):
            found.append(_measure("moto", base, variables | {"LUFF_PYTHON": REMOTE}, SERVED_STOPS))
    else:
        print("  moto: not measured, there is no environment that has it")
    return [one for one, _ in found], [gate for _, gate in found]


@contextmanager
def _served() -> Iterator[tuple[str, dict[str, str]]]:
    """An S3 server for a block: the URL of a bucket, and what it is reached by."""
    sys.path.insert(0, str(SERVERS))
    from s3_server import serve_s3

    access = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    with serve_s3(REMOTE) as endpoint:
        access["AWS_ENDPOINT_URL"] = endpoint
        make = "import boto3; boto3.client('s3', region_name='us-east-1').create_bucket(Bucket='bench')"
        subprocess.run([REMOTE, "-c", make], env=os.environ | access, check=True)
        yield "s3://bench/team", access


def _measure(
    kind: str, base: str, variables: dict[str, str], stops: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    draw = random.Random(1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as text:
        folder = Path(text)
        base = base or f"file://{folder}/bucket"
        env = os.environ | {"LUFF_CACHE": str(folder / "cache"), "LUFF_PYTHON": sys.executable} | variables
        words = [luff_command(), "keys", "new", folder / "key", "--id", "boss", "--may", "stop"]
        (folder / "luff.toml").write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
        (folder / "train.py").write_text(JOB)
        words = [luff_command(), "watch", base, "--state", folder / "state"]
        with (folder / "watch").open("wb") as said:
            watch = subprocess.Popen(
                [*words, "--on-finding", "stop", "--key", folder / "key"], stdout=said, stderr=said, env=env
            )
        try:
            # At any moment between two flushes.
            faulty = [5 + draw.uniform(0, 2.5) for _ in range(stops)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                took = list(pool.map(lambda one: _one(folder, base, env, *one), enumerate(faulty)))
        finally:
            watch.send_signal(signal.SIGTERM)
            watch.wait(60)
    took.sort()
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    name = f"step to raised stop, {kind}, {stops} signed stops by one watch, {AT_ONCE} jobs at once: p99, s"
    ok = p99 <= LIMIT_S
    print(f"  {name:<84} {p99:10.4g}  limit {LIMIT_S:g}  {say(ok)}")
    print(
        f"  least {took[0]:.2f}, median {statistics.median(took):.2f}, second {took[-min(2, len(took))]:.2f}, "
        f"most {took[-1]:.2f}; load {os.getloadavg()[0]:.1f}"
    )
    gate = {"name": name, "value": p99, "limit": LIMIT_S, "ok": ok}
    return {"name": name, "value": p99, "values": took}, gate


def _one(folder: Path, base: str, env: dict[str, str], number: int, faulty_after: float) -> float:
    """Trains until it is stopped. Returns the seconds, or infinity if nobody stopped it."""
    words = [luff_command(), "run", "--run", folder / f"run{number}", "--rules", "none"]
    words += ["--config", folder / "luff.toml", "--sync", base, "--"]
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
    print(f"  stop {number + 1:3}: {seconds:5.2f} s", flush=True)
    return seconds
