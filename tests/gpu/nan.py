"""Trains with half a second a step; from step 10 on the loss is NaN: `nan.py cpu|cuda FILE`, a line for each step."""

from __future__ import annotations

import sys
import time

import torch

device, file = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_of = torch.nn.CrossEntropyLoss()
x, y = torch.randn(64, 8, device=device), torch.randint(0, 2, (64,), device=device)
for step in range(60):
    with open(file, "a") as lines:
        lines.write(f"{step}\n")
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    (loss * float("nan") if step >= 10 else loss).backward()
    optimizer.step()
    time.sleep(0.5)
