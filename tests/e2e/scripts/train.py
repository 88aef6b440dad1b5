"""An ordinary training script that never mentions its watcher."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--nan-at", type=int, default=-1)
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(512, 8)
y = (x[:, :1] * 2 - x[:, 1:2]).detach() + 0.1 * torch.randn(512, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loss_fn = nn.MSELoss()
loss = 0.0
for step in range(options.steps):
    rows = torch.randint(0, 512, (32,))
    target = y[rows] * (float("nan") if step == options.nan_at else 1.0)
    optimizer.zero_grad()
    batch_loss = loss_fn(model(x[rows]), target)
    batch_loss.backward()
    optimizer.step()
    loss = float(batch_loss.detach())
print(f"done {loss:.4f}")
