"""A training without a framework. At a step it can wait for a file, so that a test can do something meanwhile."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--nan-at", type=int, default=-1)
parser.add_argument("--wait-at", type=int, default=-1)
parser.add_argument("--reached", type=Path, help="made at that step, with the process's number")
parser.add_argument("--go", type=Path, help="what is waited for")
parser.add_argument("--run", help="without luff run: where to")
parser.add_argument(
    "--spoil", action="store_true", help="others may write into the run, from before the first step on"
)
args = parser.parse_args()

options = choose_run(args.run, args.run is not None, make_config(None, {"save_interval": 1}))
if args.spoil:
    os.makedirs(options.path, exist_ok=True)
    os.chmod(options.path, 0o777)
hook = StepHook(options)


def step(index: int) -> None:
    """One step of the training, as the hook of a framework tells it."""
    if hook.ensure_session() is None:
        return
    hook.begin(int(Mode.TRAIN))
    hook.scalar("loss", np.nan if index == args.nan_at else 1.0 / (index + 1), int(Role.LOSS))
    hook.array("dense.weight", np.full(4, index, dtype=np.float32), int(Role.WEIGHT))
    hook.updated()
    hook.end()


for index in range(args.steps):
    hook.while_live("step", step, index)
    hook.boundary()
    if index == args.wait_at:
        hook.flush()
        args.reached.write_text(str(os.getpid()))
        until = time.monotonic() + 120
        while not args.go.exists() and time.monotonic() < until:
            time.sleep(0.01)
hook.close()
print("done", json.dumps(hook.health()["hook_error_places"]))
