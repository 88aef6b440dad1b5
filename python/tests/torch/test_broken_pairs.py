"""Inputs of one shuffling loader and targets of another: the event `broken_pairs`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
ROWS, SIZE = 64, 8
X, Y = torch.randn(ROWS, 6), torch.randn(ROWS, 3)
IDS = torch.randint(3, (ROWS,))


def loader(*tensors, shuffle=True, size=SIZE, **options):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, **options)


def dice(output, target):
    return 1 - (2 * output.sigmoid() * target).sum() / (output.sigmoid().sum() + target.sum())


def events(watched, first, second, loss, epochs=2, seed=None):
    """`loss` gets the model and a batch of each loader."""
    _, session = watched(ROLES)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        iterators = iter(first), iter(second)
        for _ in range(min(len(first), len(second))):
            batches = []
            for iterator in iterators:
                if seed is not None:  # the first batch draws the order
                    torch.manual_seed(seed + epoch)
                batches.append(next(iterator))
            one, other = batches
            optimizer.zero_grad()
            loss(model, one, other).backward()
            optimizer.step()
    return [event for event in session.json_events if event["kind"] == "broken_pairs"]


def squared(model, one, other):
    return F.mse_loss(model(one[0]), other[0])


def test_two_loaders_that_shuffle(watched):
    (event,) = events(watched, loader(X), loader(Y), squared)
    assert {name: event[name] for name in ("input", "target", "samples", "batch_size")} == {
        "input": 0,
        "target": 1,
        "samples": ROWS,
        "batch_size": SIZE,
    }


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (IDS, lambda model, one, other: F.cross_entropy(model(one[0]), other[0])),
        (
            (Y > 0).float(),
            lambda model, one, other: F.binary_cross_entropy_with_logits(model(one[0]), other[0]),
        ),
        ((Y > 0).float(), lambda model, one, other: dice(model(one[0]), other[0])),
        (Y, lambda model, one, other: nn.SmoothL1Loss()(model(one[0]), other[0])),
    ],
)
def test_losses(watched, targets, loss):
    assert len(events(watched, loader(X), loader(targets), loss)) == 1


def test_workers_shuffle_too(watched):
    assert len(events(watched, loader(X, num_workers=1), loader(Y, num_workers=1), squared)) == 1


HEALTHY = {
    "one order": (loader(X, shuffle=False), loader(Y, shuffle=False), squared),
    "only one shuffles": (loader(X), loader(Y, shuffle=False), squared),
    "generators of their own": (
        loader(X, generator=torch.Generator().manual_seed(1)),
        loader(Y, generator=torch.Generator().manual_seed(1)),
        squared,
    ),
    "other lengths": (loader(X), loader(Y[:48]), squared),
    "labels of their own": (
        loader(X, Y),
        loader(X.clone(), Y.clone()),
        lambda model, one, other: F.mse_loss(model(one[0]), one[1]) + F.mse_loss(model(other[0]), other[1]),
    ),
    "an unlabelled loader": (
        loader(X, Y),
        loader(X.clone()),
        lambda model, one, other: F.mse_loss(model(one[0]), one[1]) + model(other[0]).var(0).mean(),
    ),
    "both go through the model": (
        loader(X),
        loader(torch.randn(ROWS, 6)),
        lambda model, one, other: F.mse_loss(model(one[0]), model(other[0]).detach()),
    ),
    "mixed rows": (
        loader(X, Y),
        loader(X.clone(), Y.clone()),
        lambda model, one, other: F.mse_loss(model(0.3 * one[0] + 0.7 * other[0]), other[1]),
    ),
    "all pairs": (
        loader(X),
        loader(Y),
        lambda model, one, other: torch.cdist(model(one[0]), other[0]).min(1).values.mean(),
    ),
    "moments": (
        loader(X),
        loader(Y),
        lambda model, one, other: (model(one[0]).mean(0) - other[0].mean(0)).square().sum(),
    ),
    "random masks of errors": (
        loader(X, Y),
        loader((torch.rand(ROWS, 3) > 0.5).float()),
        lambda model, one, other: ((model(one[0]) - one[1]).square() * other[0]).mean(),
    ),
    "random masks before the square": (
        loader(X, Y),
        loader((torch.rand(ROWS, 3) > 0.5).float()),
        lambda model, one, other: ((model(one[0]) - one[1]) * other[0]).square().mean(),
    ),
    "its own target, and another": (
        loader(X, Y),
        loader(Y.clone()),
        lambda model, one, other: (
            F.mse_loss(model(one[0]), one[1]) + 0.1 * F.mse_loss(model(one[0]), other[0])
        ),
    ),
}


@pytest.mark.parametrize(("first", "second", "loss"), HEALTHY.values(), ids=HEALTHY)
def test_what_belongs_together_is_silent(watched, first, second, loss):
    assert events(watched, first, second, loss) == []


def test_one_seed_for_both_is_one_order(watched):
    assert events(watched, loader(X), loader(Y), squared, seed=5) == []


def test_nothing_is_looked_at_with_one_loader(watched):
    hook, _ = watched(ROLES)
    model = nn.Linear(6, 3)
    for one, other in loader(X, Y):
        F.mse_loss(model(one), other).backward()
    batches = hook.machine.evidence.answers.batches
    assert not batches.pairs.on and batches.given == batches._given
