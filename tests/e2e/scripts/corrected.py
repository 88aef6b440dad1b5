"""Two ranks that allow corrections and step together, without a framework; end when the file --until exists.

Each rank writes to --rates what was corrected: the number of updates so far, and the new rate, "skip", or "rollback"
with the step that it was given. At its end it writes whether its weights are finite.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import luff.numpy
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--nan-at", type=int, default=30)
parser.add_argument("--refuses", type=int, default=-1)
parser.add_argument("--unwatched", type=int, default=-1)
parser.add_argument("--corrects", choices=("lower_lr", "skip_batch", "rollback"), default="lower_lr")
parser.add_argument("--rates", type=Path, required=True)
parser.add_argument("--until", type=Path, required=True)
args = parser.parse_args()


def train(rank: int, other: Any) -> None:
    """Trains as one rank. `other` is the pipe to the other rank."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    if args.unwatched == rank:
        os.environ.pop("LUFF_SESSION")
    log = Path(f"{args.rates}-{rank}")
    step, skip, checkpoints = 0, False, {}
    weights, settings = {"dense.weight": np.zeros((8, 1))}, {"lr": 0.08}

    def note(text: object) -> None:
        with log.open("a") as file:
            file.write(f"{step + 1} {text}\n")

    def skip_next() -> None:
        nonlocal skip
        skip = True
        note("skip")

    def load_before(trouble: int) -> None:
        weights["dense.weight"] = checkpoints[max(at for at in checkpoints if at <= trouble)]
        note(f"rollback {trouble}")

    if args.refuses != rank:
        ways = {"lower_lr": True, "skip_batch": skip_next, "rollback": load_before}
        luff.corrections.accept(**{args.corrects: ways[args.corrects]})
    watched = args.unwatched != rank
    hook = luff.numpy.attach(weights, settings, run=None if watched else f"{args.rates}.unwatched")
    truth = np.random.default_rng(2).normal(size=(8, 1))
    random = np.random.default_rng(rank)
    rate, over = settings["lr"], False
    while not over:
        x = random.normal(size=(32, 8))
        error = x @ (weights["dense.weight"] - truth) + (np.nan if step == args.nan_at else 0.0)
        if step % 10 == 0:
            checkpoints[step] = weights["dense.weight"]
        over = args.until.exists()
        other.send((x.T @ error, over))
        theirs, ends = other.recv()  # both ranks make the same steps
        over = over or ends
        if skip:
            skip = False
        else:
            with hook.step() as now:
                gradient = (x.T @ error + theirs) / len(x)
                now.loss(np.mean(error**2))
                now.gradients({"dense.weight": gradient})
                weights["dense.weight"] = weights["dense.weight"] - settings["lr"] * gradient
            if settings["lr"] != rate:
                rate = settings["lr"]
                note(rate)
        step += 1
        time.sleep(0.002)
    Path(f"{log}.finite").write_text(str(bool(np.isfinite(weights["dense.weight"]).all())))
    hook.close()


if __name__ == "__main__":
    ends = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, ends[rank])) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in ranks))
