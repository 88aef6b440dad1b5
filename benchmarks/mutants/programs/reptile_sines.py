"""Meta-learning by Reptile: initial weights from which a sine of any phase and amplitude is learnt in a few steps."""

import copy
import math
import os

import torch
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

META_STEPS, META_BATCH = 300, 2
INNER_STEPS, INNER_LR, META_LR = 16, 0.05, 0.5


class SineTask:
    def __init__(self):
        self.amplitude = 0.5 + 1.5 * torch.rand(1)
        self.phase = math.pi * torch.rand(1)

    def sample(self, n):
        x = 6 * torch.rand(n, 1) - 3
        return x / 1.7, self.amplitude * torch.sin(x + self.phase)


def build():
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def adapt(model, x, y, steps=INNER_STEPS):
    """A copy of the model after a few steps on one task, and its last loss."""
    fast = copy.deepcopy(model)
    inner = torch.optim.SGD(fast.parameters(), lr=INNER_LR)
    loss_fn = nn.MSELoss()
    for _ in range(steps):
        for rows in torch.randperm(len(x)).split(10):
            inner.zero_grad()
            loss = loss_fn(fast(x[rows]), y[rows])
            loss.backward()
            inner.step()
    return fast, loss.item()


def explained_on_new_tasks(model, n_tasks=20):
    """Share of the variance explained after adaptation to twenty points, on other points of the same tasks."""
    error = variance = 0.0
    for _ in range(n_tasks):
        task = SineTask()
        fast, _ = adapt(model, *task.sample(20))
        x, y = task.sample(100)
        with torch.no_grad():
            error += (fast(x) - y).square().mean().item()
        variance += y.var().item()
    return 1 - error / variance


meta_model = build()
print(f"before: {explained_on_new_tasks(meta_model):.3f}")
for step in range(META_STEPS):
    epsilon = META_LR * (1 - step / META_STEPS)
    old = [p.detach().clone() for p in meta_model.parameters()]
    moves = [torch.zeros_like(p) for p in old]
    for _ in range(META_BATCH):
        fast, last_loss = adapt(meta_model, *SineTask().sample(20), steps=4)
        for move, before, after in zip(moves, old, fast.parameters(), strict=True):
            move += (after.detach() - before) / META_BATCH
    with torch.no_grad():
        for parameter, before, move in zip(meta_model.parameters(), old, moves, strict=True):
            parameter.copy_(before + epsilon * move)
    if step % 50 == 0:
        print(f"meta step {step}: inner loss {last_loss:.3f}")
print("score", explained_on_new_tasks(meta_model))
