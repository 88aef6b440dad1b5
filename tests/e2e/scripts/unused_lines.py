"""A small training with a line that does nothing, by the name of the mistake, or with none: `unused_lines.py NAME`."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

wrong = sys.argv[1]
torch.manual_seed(0)
x = torch.rand(512, 8)
y = (x[:, :3] * 4).argmax(1)
loader = DataLoader(TensorDataset(x[:448], y[:448]), batch_size=32, shuffle=True)
kept = DataLoader(TensorDataset(x[448:], y[448:]), batch_size=32)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.first(x))))


class Dropped(Plain):
    def __init__(self):
        super().__init__()
        self.noise = nn.Dropout(0.1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        self.noise(h)
        return self.second(h)


def plain(model, optimizer):
    for xb, yb in loader:
        loss = F.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


def clipped(model, optimizer):
    for xb, yb in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        for parameter in model.parameters():
            parameter.grad.data.clamp(-0.1, 0.1)
        optimizer.step()


def last(model, optimizer):
    total = 0.0
    for xb, yb in loader:
        loss = F.cross_entropy(model(xb), yb)
        total += loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def replaced(model, optimizer):
    for xb, yb in loader:
        scores = model(xb)
        loss = F.cross_entropy(scores, yb)
        loss = 1e-3 * F.softplus(scores).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def named(model, optimizer):
    for xb, yb in loader:
        optimizer.zero_grad  # noqa: B018
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()


def accuracy(model):
    model.eval()
    with torch.no_grad():
        right = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in kept)
    model.train()
    return right / 64


KINDS = {"clipped": clipped, "last": last, "replaced": replaced, "named": named}
model = Dropped() if wrong == "dropped" else Plain()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    KINDS.get(wrong, plain)(model, optimizer)
    print(accuracy(model))
