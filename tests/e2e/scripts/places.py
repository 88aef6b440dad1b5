"""Trains a small classifier, or two networks; the argument names a call that stands at the wrong place.

last_batch: backward() and step() stand behind the loop over batches. clipped_late: gradients are clipped after
step(). never_steps: the second network's optimizer never steps.
"""

import sys

import torch
from torch import nn

WRONG = sys.argv[1]
torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] + x[:, 1] > 0).long()
noisy = x + 0.5 * torch.randn(256, 8)


def classify() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()

    def learn(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        if WRONG != "clipped_late":
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        if WRONG == "clipped_late":
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    for _ in range(8):
        for rows in torch.randperm(256).split(32):
            loss = criterion(model(x[rows]), y[rows])
            if WRONG != "last_batch":
                learn(loss)
        if WRONG == "last_batch":
            learn(loss)


def denoise() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    helper = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    beside = torch.optim.Adam(helper.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    for _ in range(8):
        for rows in torch.randperm(192).split(32):
            optimizer.zero_grad()
            criterion(model(noisy[rows]), x[rows]).backward()
            optimizer.step()
            beside.zero_grad()
            helper(noisy[rows]).squeeze(1).sub(x[rows, 0]).abs().mean().backward()
            if WRONG != "never_steps":
                beside.step()


classify() if WRONG in ("last_batch", "clipped_late", "nothing") else denoise()
