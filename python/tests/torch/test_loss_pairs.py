"""Losses that a script writes itself, and that pair each sample with the targets of all others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence._loss_pairs import pairs_behind
from torch import nn

N = 6
COLUMN = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0], [0.0]])
ROW = COLUMN[:, 0].clone()
SIGNS = 2 * ROW - 1


def outputs(*shape):
    """Returns what a layer gives, between 0 and 1."""
    layer = nn.Linear(4, shape[1] if len(shape) > 1 else 1)
    made = torch.sigmoid(layer(torch.randn(shape[0], 4)))
    return made if len(shape) > 1 else made.squeeze(-1)


def contrastive(distance, label):
    return torch.mean((1 - label) * distance.pow(2) + label * torch.clamp(2.0 - distance, min=0.0).pow(2))


def clipped(ratio, gain):
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (lambda: contrastive(outputs(N), COLUMN), ((N,), (N, 1))),
        (lambda: contrastive(outputs(N, 1), ROW), ((N, 1), (N,))),
        (lambda: -(ROW * outputs(N, 1).log() + (1 - ROW) * (1 - outputs(N, 1)).log()).mean(), ((N, 1), (N,))),
        (lambda: -(outputs(N).log() * COLUMN).mean() + 0.5 * outputs(N, 1).square().mean(), ((N,), (N, 1))),
        (lambda: torch.relu(1 - SIGNS * outputs(N, 1)).mean(), ((N, 1), (N,))),
        (lambda: torch.clamp(1 - SIGNS * outputs(N, 1), min=0).sum() / N, ((N, 1), (N,))),
        (lambda: F.softplus(-SIGNS * outputs(N, 1)).mean(), ((N, 1), (N,))),
        (lambda: clipped(outputs(N), COLUMN), ((N,), (N, 1))),
        (lambda: (outputs(N) * COLUMN).sum(1).mean() * torch.tensor(0.5), ((N,), (N, 1))),
        (lambda: torch.tensor(0.5) * (outputs(N) / (COLUMN + 1)).mean(), ((N,), (N, 1))),
        (
            lambda: (
                F.cross_entropy(nn.Linear(4, 3)(torch.randn(N, 4)), ROW.long(), reduction="none") * COLUMN
            ).mean(),
            ((N,), (N, 1)),
        ),
        (lambda: (outputs(N, 4) * COLUMN[:, :, None].expand(N, 1, 4)).mean(), ((N, 4), (N, 1, 4))),
    ],
)
def test_products_of_each_sample_with_all_targets(loss, shapes):
    assert pairs_behind(loss().grad_fn)[:2] == shapes


def cox(risk):
    """Each sample against those that are still at risk."""
    later = (ROW[:, None] >= ROW[None, :]).float()
    return -(risk - torch.log((later * risk.exp()).sum(1))).mean()


def ranked(scores):
    return (COLUMN * torch.relu(1 - (scores[:, None] - scores[None, :]))).mean()


def supervised_contrastive(features):
    similar = features @ features.T
    same = (COLUMN == COLUMN.T).float()
    return -(same * F.log_softmax(similar, 1)).sum(1).mean()


def quantiles(guesses):
    error = COLUMN - guesses
    return torch.max(0.9 * error, -0.1 * error).mean()


def poisson(rates):
    """Counts of a grid: each has its own rate, the product of a place's and a time's."""
    grid = rates * ROW
    return (torch.exp(grid) - torch.rand(N, N) * grid).mean()


def penalised(grid):
    return F.mse_loss(grid.sum(1), ROW) + 0.1 * grid.square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: contrastive(outputs(N), ROW),
        lambda: contrastive(outputs(N, 1), COLUMN),
        lambda: cox(outputs(N)),
        lambda: ranked(outputs(N)),
        lambda: supervised_contrastive(outputs(N, 4)),
        lambda: quantiles(outputs(N)),  # what is subtracted is not known
        lambda: (outputs(N)[:, None] * outputs(N)[None, :]).mean(),
        lambda: (outputs(N) * torch.ones(N, 1)).mean(),  # any target goes with any value
        lambda: ((outputs(N) * COLUMN) * torch.rand(N, N)).mean(),  # weights of pairs
        lambda: torch.relu((outputs(N) * COLUMN) + torch.rand(N, N)).mean(),
        lambda: torch.logsumexp(outputs(N) * COLUMN, 1).mean(),
        lambda: ((outputs(N) * COLUMN).sum(1) ** 2).mean(),
        lambda: poisson(outputs(N, 1)),
        lambda: F.poisson_nll_loss(outputs(N, 1) * ROW, torch.rand(N, N)),
        lambda: penalised(outputs(N, 1) * ROW),
        lambda: (outputs(N, 3) * torch.rand(3)).mean(),
        lambda: (outputs(N, N) * COLUMN).mean(),
        lambda: (outputs(1) * torch.ones(1, 1)).mean(),
        lambda: F.mse_loss(outputs(N), ROW),
        lambda: outputs(N).mean() * torch.tensor(0.0),
        lambda: nn.Parameter(torch.ones(3)).sum(),
    ],
)
def test_pairs_on_purpose_and_losses_of_one_shape(loss):
    assert pairs_behind(loss().grad_fn) is None


def told(session):
    return [event for event in session.json_events if event["kind"] == "loss_pairs"]


def test_told_at_the_second_root_and_taken_back_when_it_is_gone_for_long(watched):
    _, session = watched()
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps, target):
        for _ in range(steps):
            optimizer.zero_grad()
            (model(torch.randn(N, 4)) * target).mean().backward()
            optimizer.step()

    train(1, COLUMN)
    assert told(session) == []
    train(1, COLUMN)
    assert told(session) == [{"kind": "loss_pairs", "paired": True, "output": [N], "target": [N, 1]}]
    train(14, ROW)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # roots are looked at anew
    train(8, ROW)
    assert [event["paired"] for event in told(session)] == [True, False]


@pytest.mark.parametrize(("every", "expected"), [(2, 1), (5, 0)])
def test_a_root_of_several_is_told_where_it_comes_again_and_again(watched, every, expected):
    _, session = watched()
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(16):
        optimizer.zero_grad()
        (model(torch.randn(N, 4)) * (ROW if step % every < every - 1 else COLUMN)).mean().backward()
        optimizer.step()
    assert len(told(session)) == expected


LINES = torch.linspace(0.1, 2, N)[:, None]
POWERS = torch.logspace(-1, 1, N)[:, None]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda step: LINES, 0),
        (lambda step: torch.linspace(0.1, 2, N)[:, None], 0),
        (lambda step: POWERS, 0),
        (lambda step: LINES.double().clone(), 0),
        (lambda step: COLUMN, 1),  # labels of all samples, the same in each update
        (lambda step: torch.arange(N + step, step, -1.0)[:, None], 1),  # returns of an episode
        (lambda step: LINES[:, 0][torch.tensor([1, 0, 3, 2, 5, 4])][:, None], 1),
    ],
)
def test_a_grid_that_never_changes_belongs_to_no_samples(watched, target, expected):
    _, session = watched()
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        torch.sigmoid(model(torch.randn(N, 4)) * target(step)).mean().backward()
        optimizer.step()
    assert len(told(session)) == expected
