"""Trains a small model and measures it on held-out rows; the argument names what is done to rows on one side, or both.

The names with a `no_` before them do what looks alike, and is right.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

CASE = sys.argv[1]
torch.manual_seed(0)


def by_row(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def fit(
    model: nn.Module, loss: nn.Module, train: list[torch.Tensor], test: list[torch.Tensor], noise: float = 0
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        model.train()
        for rows in torch.randperm(len(train[0])).split(32):
            x = train[0][rows]
            optimizer.zero_grad()
            loss(model(x + noise * torch.randn_like(x)), train[1][rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held = [
                loss(model(test[0][rows]), test[1][rows]) for rows in torch.arange(len(test[0])).split(64)
            ]
        print(f"held out {torch.stack(held).mean():.3f}")


def table() -> None:
    """A regression of standardised columns."""
    x = torch.randn(2000, 6)
    y = 2 * x[:, :1] + x[:, 1:2] * x[:, 2:3] + 0.3 * torch.randn(2000, 1)
    y = y / y.std()
    noise = 0.0
    if CASE == "evaluation_cut":
        x[1600:] = x[1600:].long().float()
    elif CASE == "training_cut":
        x[:1600] = x[:1600].long().float()
    elif CASE == "both_cut":
        x = x.long().float()
    elif CASE == "evaluation_by_row":
        x[1600:] = by_row(x[1600:])
    elif CASE == "both_by_row":
        x = by_row(x)
    elif CASE == "targets_cut":
        y[:1600] = y[:1600].long().float()
    elif CASE == "codes":
        x[::10, 0] = -999
    elif CASE == "no_noise_on_whole_numbers":
        x, noise = (x > 0.3).float(), 0.2
    elif CASE == "no_rows_with_noise":
        x, noise = by_row(torch.randn(2000, 20)), 0.3
        y = x[:, :1]
    elif CASE == "no_rounded_targets":
        y[:1600] = y[:1600].round()
    layers = [nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1)]
    if CASE == "codes":
        layers.insert(1, nn.LayerNorm(32))  # without it the scale is named
    fit(nn.Sequential(*layers), nn.MSELoss(), [x[:1600], y[:1600]], [x[1600:], y[1600:]], noise)


def classes() -> None:
    """Five classes of unlike frequency, with weights."""
    shares = torch.tensor([0.1, 0.4, 0.25, 0.15, 0.1])
    labels = torch.multinomial(shares, 2400, replacement=True)
    x = (1.5 * torch.randn(5, 16))[labels] + torch.randn(2400, 16)
    counts = labels.bincount()
    weights = len(labels) / counts
    if CASE == "weights_by_frequency":
        weights = len(labels) / counts.sort(descending=True).values
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))

    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores, target, weight=weights)

    fit(model, loss, [x[:1900], labels[:1900]], [x[1900:], labels[1900:]])


classes() if "weights" in CASE else table()
