"""A task of a Slurm job: trains a linear model, keeps a checkpoint of each step, and leaves with it on SIGUSR1.

usage: slurm_task.py FOLDER STEPS [--wait-at STEP] [--nan-at STEP]
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import luff.numpy
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument("--wait-at", type=int, default=-1, help="waits there until FOLDER/go exists")
parser.add_argument("--nan-at", type=int, default=-1)
args = parser.parse_args()

leave = False


def on_usr1(*_):
    global leave
    leave = True


signal.signal(signal.SIGUSR1, on_usr1)
rank = os.environ["RANK"]
checkpoint = args.folder / f"checkpoint-{rank}.npz"
weights = {"w": np.zeros((4, 1), np.float32)}
begin = 0
if checkpoint.exists():
    with np.load(checkpoint) as saved:
        begin, weights["w"] = int(saved["step"]), saved["w"]
hook = luff.numpy.attach(weights)
random = np.random.default_rng(0)
x = random.normal(size=(64, 4)).astype(np.float32)
y = x @ np.ones((4, 1), np.float32)
for index in range(begin, args.steps):
    with hook.step() as step:
        error = x @ weights["w"] - y * (np.nan if index == args.nan_at else 1.0)
        step.loss(float(np.mean(error**2)))
        weights["w"] = weights["w"] - np.float32(0.01) * (2 * x.T @ error / len(x)).astype(np.float32)
    np.savez(args.folder / f"new-{rank}.npz", step=index + 1, w=weights["w"])
    os.replace(args.folder / f"new-{rank}.npz", checkpoint)
    if index == args.wait_at:
        hook.flush()
        (args.folder / f"reached-{rank}").touch()
        end = time.monotonic() + 300
        while not leave and not (args.folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
    if leave:
        break
hook.close()
sys.stdout.write(f"task {rank} leaves\n")
