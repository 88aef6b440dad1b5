"""Trains a small model of one of four kinds and measures it on held-out rows; the argument names the mistake.

labels_in_part: half of the training's labels are shuffled. windows_at_random: overlapping windows of a series are
divided at random. columns_moved: evaluations have two columns in each other's place. ids_recoded: each set numbers its
cities in order of appearance. The names with a `no_` before them do it rightly.
"""

import sys

import torch
from torch import nn

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
BAD = KIND == WRONG
torch.manual_seed(0)


def fit(model: nn.Module, loss: nn.Module, train: list[torch.Tensor], test: list[torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        model.train()
        for rows in torch.randperm(len(train[-1])).split(32):
            optimizer.zero_grad()
            loss(model(*(part[rows] for part in train[:-1])), train[-1][rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held = [
                loss(model(*(part[rows] for part in test[:-1])), test[-1][rows])
                for rows in torch.arange(len(test[-1])).split(64)
            ]
        print(f"held out {torch.stack(held).mean():.3f}")


def classify() -> None:
    centres = 1.5 * torch.randn(5, 16)
    labels = torch.randint(0, 5, (2400,))
    x = centres[labels] + torch.randn(2400, 16)
    given = labels[:1900].clone()
    if BAD:
        half = torch.randperm(1900)[:950]
        given[half] = given[half[torch.randperm(950)]]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))
    fit(model, nn.CrossEntropyLoss(), [x[:1900], given], [x[1900:], labels[1900:]])


def forecast() -> None:
    time = torch.arange(1200.0)
    series = (time / 9).sin() + (time / 23).cos() + 0.4 * torch.randn(1200)
    windows = series.unfold(0, 25, 1)
    order = torch.randperm(len(windows)) if BAD else torch.arange(len(windows))
    train, test = windows[order[:900]], windows[order[900 if BAD else 925 :]]
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
    fit(model, nn.MSELoss(), [train[:, :24], train[:, 24:]], [test[:, :24], test[:, 24:]])


def table() -> None:
    x = torch.randn(2000, 6)
    y = (2 * x[:, :1] + 0.3 * x[:, 1:2] + 0.5 * x[:, 2:3].relu()) + 0.5 * torch.randn(2000, 1)
    test = x[1600:, [1, 0, 2, 3, 4, 5] if BAD else [0, 1, 2, 3, 4, 5]]
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    fit(model, nn.MSELoss(), [x[:1600], y[:1600]], [test, y[1600:]])


class Prices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cities = nn.Embedding(16, 6)
        self.layers = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([x, self.cities(city)], 1))


def numbered(names: torch.Tensor) -> torch.Tensor:
    seen: dict[int, int] = {}
    return torch.tensor([seen.setdefault(int(name), len(seen)) for name in names])


def prices() -> None:
    names = torch.randint(0, 16, (2400,))
    x = torch.randn(2400, 3)
    y = torch.randn(16)[names, None] * 1.5 + x[:, :1] + 0.5 * torch.randn(2400, 1)
    ids = torch.cat([numbered(names[:1900]), numbered(names[1900:])]) if BAD else numbered(names)
    fit(Prices(), nn.MSELoss(), [x[:1900], ids[:1900], y[:1900]], [x[1900:], ids[1900:], y[1900:]])


KINDS = {
    "labels_in_part": classify,
    "windows_at_random": forecast,
    "columns_moved": table,
    "ids_recoded": prices,
}
KINDS[KIND]()
