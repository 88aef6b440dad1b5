"""Trains a small model with a mistake that people made in real programs; the argument names it.

outside_the_loop: what trains stands behind the loop over batches, so that a pass is drawn for one update. viewed_heads:
heads of attention are split off by a view. viewed_channels: channels of a convolution become features by a view.
weighted_mean: weights of samples multiply a loss that is one number already. free_scale: errors are divided by a
predicted variance whose logarithm is missing. shared_norm: two places of a model have one batch normalisation.
padded_targets: the loss counts the padding behind the end of each row. Names with a `no_` before them do it rightly.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
IS_WRONG = KIND == WRONG
torch.manual_seed(0)


def outside_the_loop() -> None:
    x = torch.randn(320, 8)
    y = (x[:, :3].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def learn(rows: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()

    for _ in range(12):
        model.train()
        for rows, labels in loader:
            if not IS_WRONG:
                learn(rows, labels)
        if IS_WRONG:
            learn(rows, labels)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.place = nn.Parameter(torch.randn(1, 12, 16) * 0.1)
        self.split, self.merge, self.last = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        h = self.first(x) + self.place
        parts = self.split(h).chunk(3, -1)
        if IS_WRONG:
            q, k, v = (part.reshape(rows, 4, 12, 4) for part in parts)
            found = (torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v).reshape(rows, 12, 16)
        else:
            q, k, v = (part.reshape(rows, 12, 4, 4).transpose(1, 2) for part in parts)
            found = (torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v).transpose(1, 2).reshape(rows, 12, 16)
        return self.last((h + self.merge(found)).mean(1))


def classify(model: nn.Module, x: torch.Tensor, y: torch.Tensor, passes: int = 3, lr: float = 3e-3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(passes):
        model.train()
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x[:64])


def viewed_heads() -> None:
    x = torch.randn(640, 12, 4)
    classify(Heads(), x, x[:, :, 0].mean(1).mul(6).round().clamp(-1, 1).long() + 1)


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.state = nn.Conv1d(3, 16, 3, padding=1), nn.GRU(16, 16, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.convolution(x))
        h = h.view(len(x), -1, 16) if IS_WRONG else h.transpose(1, 2)
        return self.last(self.state(h)[0][:, -1])


def viewed_channels() -> None:
    x = torch.randn(640, 3, 20)
    classify(Channels(), x, x[:, 0].mean(1).mul(6).round().clamp(-1, 1).long() + 1)


def weighted_mean() -> None:
    x = torch.randn(960, 8)
    y = (x[:, :3].sum(1) > 1.5).long()
    weight = torch.tensor([1.0, 5.0])[y]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        for rows in torch.randperm(960).split(32):
            loss = F.cross_entropy(model(x[rows]), y[rows], reduction="mean" if IS_WRONG else "none")
            optimizer.zero_grad()
            (loss * weight[rows]).mean().backward()
            optimizer.step()


def free_scale() -> None:
    x = torch.randn(960, 8)
    y = x[:, :3].sum(1) + 0.3 * torch.randn(960)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        for rows in torch.randperm(960).split(32):
            mean, logarithm = model(x[rows]).unbind(1)
            errors = (y[rows] - mean) ** 2 / logarithm.exp()
            optimizer.zero_grad()
            (errors if IS_WRONG else errors + logarithm).mean().backward()
            optimizer.step()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(16)
        self.first, self.one = nn.Linear(8, 16), norm
        self.second, self.two = nn.Linear(16, 16), norm if IS_WRONG else nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)
        nn.init.constant_(self.second.bias, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.two(self.second(torch.relu(self.one(self.first(x)))))))


def shared_norm() -> None:
    x = torch.randn(960, 8)
    classify(Blocks(), x, x[:, :3].sum(1).round().clamp(-1, 1).long() + 1, passes=4)


def padded_targets() -> None:
    length = torch.randint(2, 6, (640,))
    rows = torch.randint(3, 16, (640, 16))
    place = torch.arange(16)
    rows[place == length[:, None]] = 2
    rows[place > length[:, None]] = 0
    rows[:, 1:][place[1:].expand(640, 15) < length[:, None]] = 3
    model = nn.Sequential(nn.Embedding(16, 24), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        for chosen in torch.randperm(640).split(32):
            given, wanted = rows[chosen, :-1], rows[chosen, 1:]
            scores = model(given).transpose(1, 2)
            loss = F.cross_entropy(scores, wanted, ignore_index=-100 if IS_WRONG else 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


globals()[KIND]()
