"""A small training whose data are handled in one way that cannot be meant, or as it is meant (``no_`` in front)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CASE = sys.argv[1]
WRONG = not CASE.startswith("no_")
KIND = CASE.removeprefix("no_")
torch.manual_seed(0)
np.random.seed(0)

draws = np.random.default_rng(0)
centres = draws.normal(size=(4, 1, 12, 12))


def rows(count: int) -> tuple[Any, Any]:
    kinds = draws.integers(4, size=count)
    return (centres[kinds] + 0.7 * draws.normal(size=(count, 1, 12, 12))).astype("float32"), kinds


class Items(Dataset[Any]):
    """Pictures and their classes, or masks."""

    def __init__(self, x: Any, y: Any, augment: bool) -> None:
        self.x, self.y, self.augment = x, y, augment

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x, y = self.x[i], self.y[i]
        if KIND == "in_place" and self.augment:
            x = x if WRONG else x.copy()
            x += 0.1 * np.random.normal(size=x.shape).astype("float32")
        if KIND == "drawn_in_evaluations" and self.augment != WRONG:
            x = x + 0.1 * np.random.normal(size=x.shape).astype("float32")
        if KIND == "moved_apart":
            y = (x[0] > 0.5).astype("float32")
            if self.augment:
                flips = np.random.randint(2, size=2)
                x = np.flip(x, -1).copy() if flips[0] else x
                y = np.flip(y, -1).copy() if flips[1 if WRONG else 0] else y
        return x, y


train_x, train_y = rows(512)
test_x, test_y = rows(256)
if KIND == "other_rows" and WRONG:
    test_y = np.roll(test_y, 7)
if KIND == "erased":
    kept = draws.random(size=test_x.shape) < 0.6
    if WRONG:
        test_x = np.where(kept, test_x, 0).astype("float32")
    else:
        train_x = np.where(draws.random(size=train_x.shape) < 0.6, train_x, 0).astype("float32")

outputs = 144 if KIND == "moved_apart" else 4
model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, outputs))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
train = DataLoader(Items(train_x, train_y, True), 16, shuffle=True)
test = DataLoader(Items(test_x, test_y, False), 64)


def loss_of(x: Any, y: Any) -> Any:
    if KIND == "moved_apart":
        return functional.binary_cross_entropy_with_logits(model(x).view_as(y), y)
    return functional.cross_entropy(model(x), y)


for _ in range(5 if KIND in ("other_rows", "erased", "one_row") else 20):  # a child answers meanwhile
    model.train()
    for x, y in train:
        if KIND == "one_row" and WRONG:
            x, y = x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone()
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(float(loss_of(x, y)) for x, y in test))
