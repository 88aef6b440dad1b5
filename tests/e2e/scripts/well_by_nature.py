"""Trainings that are well, of kinds that were taken for a mistake: give the name of one."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc_q, self.fc_k = nn.Linear(width, width), nn.Linear(width, width)
        self.fc_v, self.fc_o = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        q, k, v = self.fc_q(queries), self.fc_k(keys), self.fc_v(keys)
        out = q + (q @ k.transpose(1, 2) / 8).softmax(-1) @ v
        return out + F.relu(self.fc_o(out))


class Sets(nn.Module):
    """Four seeds look at a set, and the set looks at what they made of it: at first the same, four times."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, 4, 64) * 0.03)
        self.embed = nn.Linear(2, 64)
        self.gather, self.spread = Attention(64), Attention(64)
        self.answer = nn.Linear(64, 2)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = self.embed(points)
        made = self.gather(self.seeds.expand(len(x), -1, -1), x)
        return self.answer(self.spread(x, made).mean(1))


def even_keys() -> None:
    """Keys that are all alike leave an attention even, and get hardly any gradient, though all is well."""
    model = Sets()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-5)
    for _ in range(100):
        middle = torch.randn(16, 1, 2)
        points = middle + 3 * torch.randn(16, 20, 2)
        spread = points.std(1)
        loss = (90 + F.mse_loss(model(points), spread + torch.randn(16, 2))).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bags() -> None:
    """A bag of patterns is told by one of them, in whichever place; it takes long to find out."""
    signals = torch.randint(0, 2, (4, 8)).float()
    bits = torch.randint(0, 2, (512, 12, 8)).float()
    labels = torch.arange(512) % 2
    for row in range(0, 512, 2):
        bits[row + 1, row % 12] = signals[row // 2 % 4]
    model = nn.Sequential(nn.Flatten(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        for rows in torch.randperm(512).split(32):
            loss = F.binary_cross_entropy_with_logits(model(bits[rows]), labels[rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
