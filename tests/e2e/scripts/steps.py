"""A training of a linear model, without a framework: quick to start.

At a step it can wait for a file, so that a test can do something in the meantime.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from luff._base_hook import choose_run, make_config
from luff.numpy import Hook

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100, help="the step before which it ends")
parser.add_argument("--nan-at", type=int, default=-1, help="the targets of this step are NaN")
parser.add_argument("--outputs", type=int, default=1, help="width of the model")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds after each step")
parser.add_argument("--wait-at", type=int, default=-1)
parser.add_argument("--reached", type=Path, help="made at that step, with the process's number")
parser.add_argument("--go", type=Path, help="what is waited for")
parser.add_argument("--cut-off", nargs="*", default=(), help="files that are cut off after the wait")
parser.add_argument("--swallow", action="store_true", help="goes on when it is told to stop")
parser.add_argument("--stubborn", action="store_true", help="ignores SIGTERM")
parser.add_argument("--fail-at", type=int, default=-1, help="raises after this step")
parser.add_argument("--die", type=int, default=0, help="the signal that ends it")
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--checkpoint", type=Path, help="goes on from there, and is saved there at the end")
parser.add_argument("--run", help="without luff run: where to, or with which it goes on")
parser.add_argument("--interval", type=int, default=1, help="of what is recorded; 0: as luff run says")
parser.add_argument(
    "--spoil", action="store_true", help="others may write into the run, from before the first step on"
)
args = parser.parse_args()

if args.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
config = make_config(None, {"save_interval": args.interval} if args.interval else {})
options = choose_run(args.run, args.run is not None, config)
if args.spoil:
    os.makedirs(options.path, exist_ok=True)
    os.chmod(options.path, 0o777)
settings = {"lr": 0.02}
random = np.random.default_rng(0)
x = random.normal(size=(512, 8)).astype(np.float32)
y = x @ random.normal(size=(8, args.outputs)).astype(np.float32)
y += random.normal(scale=0.1, size=y.shape)
rank = int(os.environ.get("RANK", "0"))
weights = {"dense.weight": np.zeros((8, args.outputs), dtype=np.float32)}
begin, loss = 0, 0.0
if args.checkpoint and args.checkpoint.exists():
    with np.load(args.checkpoint) as saved:
        begin, weights["dense.weight"] = int(saved["step"]), saved["weight"]
# Not by `attach`, which raises if the run cannot be opened: like those of `luff run`, this hook does not.
hook = Hook(options, weights, settings)


def train_step(index: int) -> None:
    """Makes one step of the training."""
    global loss
    rows = np.random.default_rng((index, rank)).integers(0, len(x), 32)
    target = y[rows] * (np.nan if index == args.nan_at else 1.0)
    with hook.step() as step:
        error = x[rows] @ weights["dense.weight"] - target
        loss = float(np.mean(error**2))
        gradient = (2 * x[rows].T @ error / len(rows)).astype(np.float32)
        step.loss(loss)
        step.gradients({"dense.weight": gradient})
        weights["dense.weight"] = weights["dense.weight"] - np.float32(settings["lr"]) * gradient


def wait() -> None:
    """Waits until the test continues it, or for a bounded time."""
    hook.flush()
    if args.reached:
        args.reached.write_text(str(os.getpid()))
    until = time.monotonic() + 120
    while args.go and not args.go.exists() and time.monotonic() < until:
        time.sleep(0.01)
    for path in args.cut_off:
        os.truncate(path, 100)


try:
    for index in range(begin, args.steps):
        try:
            train_step(index)
        except SystemExit:
            if not args.swallow:
                raise
        if index == args.fail_at:
            raise RuntimeError("a mistake of the script")
        if index == args.wait_at:
            wait()
        if args.sleep:
            time.sleep(args.sleep)
finally:
    print("finally")
if args.checkpoint:
    np.savez(args.checkpoint, step=args.steps, weight=weights["dense.weight"])
hook.close()
if args.die:
    sys.stdout.flush()
    os.kill(os.getpid(), args.die)
print(f"done {loss:.4f}", json.dumps(hook.health()["hook_error_places"]))
sys.exit(args.exit)
