"""An ordinary training script that never mentions its watcher."""

import argparse
import sys
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--nan-at", type=int, default=-1)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--swallow", action="store_true")
parser.add_argument("--stubborn", action="store_true")
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--die", type=int, default=0)
parser.add_argument("--fail-at", type=int, default=-1)
options = parser.parse_args()

if options.stubborn:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(512, 8)
y = (x[:, :1] * 2 - x[:, 1:2]).detach() + 0.1 * torch.randn(512, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loss_fn = nn.MSELoss()


def train_step(step: int) -> float:
    rows = torch.randint(0, 512, (32,))
    target = y[rows] * (float("nan") if step == options.nan_at else 1.0)
    optimizer.zero_grad()
    loss = loss_fn(model(x[rows]), target)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


loss = 0.0
try:
    for step in range(options.steps):
        try:
            loss = train_step(step)
        except SystemExit:
            if not options.swallow:
                raise
        if step == options.fail_at:
            raise RuntimeError("a mistake of the script")
        if options.sleep:
            time.sleep(options.sleep)
finally:
    print("finally")
if options.die:
    import os

    os.kill(os.getpid(), options.die)
print(f"done {loss:.4f}")
sys.exit(options.exit)
