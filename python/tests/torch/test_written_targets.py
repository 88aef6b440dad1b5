"""Losses of smoothed labels, of shares and of two classes that a script writes itself, as calls with their targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROWS, CLASSES = 6, 4


def trained(watched, loss_of, targets, steps=4):
    """Trains, and returns the steps whose model was seen with an open session, with the targets of each."""
    _, session = watched(DEFAULT_ROLES | {Role.SAMPLE})
    model = nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = []
    for _ in range(steps):
        x, y = torch.randn(ROWS, 4), targets()
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        given.append(y)
    return list(zip(session.train(), given, strict=True))[1:]


def ids():
    return torch.tensor([0, 3, 1, 2, 0, 1])[torch.randperm(ROWS)]


def smooth(y, share=0.1, rest=CLASSES - 1):
    shares = torch.full((ROWS, CLASSES), share / rest)
    return shares.scatter_(1, y[:, None], 1 - share)


def without_padding(y):
    """As of a text: rows of padding are zeros, and so is the column of padding."""
    shares = torch.full((ROWS, CLASSES), 0.1 / (CLASSES - 2)).scatter_(1, y[:, None], 0.9)
    shares[:, 0] = 0
    return shares.masked_fill((y == 0)[:, None], 0)


def even(y):
    return F.one_hot(y, CLASSES) * 0.9 + 0.1 / CLASSES


@pytest.mark.parametrize(
    ("loss_of", "ignored"),
    [
        (lambda o, y: torch.mean(torch.sum(-smooth(y) * o.log_softmax(-1), dim=-1)), False),
        (lambda o, y: -(even(y) * F.log_softmax(o, 1)).sum(1).mean(), False),
        (lambda o, y: -(F.log_softmax(o, 1) * even(y)).sum() / ROWS, False),
        (lambda o, y: -(even(y) * F.softmax(o, 1).log()).sum(1).mean(), False),
        (lambda o, y: -(without_padding(y) * F.log_softmax(o, 1)).sum() / (y != 0).sum(), True),
        (lambda o, y: (-(smooth(y) * F.log_softmax(o, 1)).sum(1) * (y != 0)).sum() / (y != 0).sum(), True),
        (lambda o, y: -(smooth(y) * F.log_softmax(o, 1)).sum(1)[y != 0].mean(), True),
        (lambda o, y: -(smooth(y) * F.log_softmax(o, 1)).sum(1).masked_fill(y == 0, 0).mean(), True),
    ],
)
def test_smoothed_labels_are_ids(watched, loss_of, ignored):
    for step, y in trained(watched, loss_of, ids):
        expected = torch.where(y == 0, -100, y) if ignored else y
        np.testing.assert_array_equal(step.values["sample/NLLLoss_input_1"], expected.numpy())
        scores = torch.tensor(step.values["sample/NLLLoss_input_0"])
        value = F.nll_loss(scores, expected).item()
        assert step.scalars["NLLLoss_part_0"] == pytest.approx(value, rel=1e-4)


def shares():
    return F.softmax(2 * torch.randn(ROWS, CLASSES), 1)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, t: -(t * F.log_softmax(o, 1)).sum(1).mean(),
        lambda o, t: torch.mean(torch.sum(-t * torch.log(F.softmax(o, -1)), -1)),
        lambda o, t: -(F.log_softmax(o, -1) * t).sum() / ROWS + 1e-3 * o.square().mean(),
    ],
)
def test_shares_of_classes_are_targets(watched, loss_of):
    for step, t in trained(watched, loss_of, shares):
        np.testing.assert_allclose(step.values["sample/CrossEntropyLoss_input_1"], t.numpy(), rtol=1e-6)
        scores = torch.tensor(step.values["sample/CrossEntropyLoss_input_0"])
        value = F.cross_entropy(scores, t).item()
        assert step.scalars["CrossEntropyLoss_part_0"] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (smooth(y) * F.log_softmax(o, 1)).sum(1).mean(),  # made small
        lambda o, y: -(smooth(y) * F.log_softmax(o, 0)).sum(1).mean(),
        lambda o, y: -(0.5 * smooth(y) * F.log_softmax(o, 1)).sum(1).mean() if y.sum() < 0 else o.mean(),
        lambda o, y: -(torch.rand(ROWS, CLASSES) * F.log_softmax(o, 1)).sum(1).mean(),  # gains
        lambda o, y: -((smooth(y) - 0.25) * F.log_softmax(o, 1)).sum(1).mean(),
        lambda o, y: -((smooth(y) * F.log_softmax(o, 1)).sum(1) * torch.rand(ROWS)).mean(),
        lambda o, y: -(F.softmax(o, 1) * F.log_softmax(o, 1)).sum(1).mean(),  # an entropy
        # the one of the action that was taken, where it was rewarded with 1
        lambda o, y: -((F.one_hot(y, CLASSES) * F.log_softmax(o, 1)).sum(1) * (y == 0)).mean(),
    ],
)
def test_what_has_no_such_targets(watched, loss_of):
    for step, _ in trained(watched, loss_of, ids):
        assert not any(name.startswith("sample/") and "Loss" in name for name in step.values)


def chosen(p, y):
    return p.gather(1, y[:, None]).squeeze(1)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (-((1 - chosen(o.softmax(1), y)) ** 2) * chosen(o.log_softmax(1), y)).mean(),
        lambda o, y: (-0.25 * (1 - chosen(o.softmax(1), y)).pow(2) * chosen(o.softmax(1), y).log()).mean(),
        lambda o, y: -(F.one_hot(y, CLASSES) * (1 - o.softmax(1)) ** 2 * o.log_softmax(1)).sum(1).mean(),
        lambda o, y: -((1 - chosen(o.log_softmax(1).exp(), y)) ** 2 * chosen(o.log_softmax(1), y)).sum(),
    ],
)
def test_a_focal_loss_that_is_written_out(watched, loss_of):
    for step, y in trained(watched, loss_of, ids):
        np.testing.assert_array_equal(step.values["sample/NLLLoss_input_1"], y.numpy())


def ones():
    return torch.tensor([0.0, 1, 1, 0] * ROWS)[torch.randperm(4 * ROWS)].reshape(ROWS, CLASSES)


def two(x):
    return torch.log(1 + torch.exp(-x.abs()))


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (F.softplus(o) - o * y).mean(),
        lambda o, y: (F.softplus(o) - y * o).sum(1).mean(),
        lambda o, y: (o.clamp(min=0) - o * y + torch.log1p(torch.exp(-o.abs()))).mean(),
        lambda o, y: (F.relu(o) - o * y + two(o)).mean(),
        lambda o, y: (torch.clamp(o, min=0) - o * y + F.softplus(-o.abs())).sum() / ROWS,
        lambda o, y: (y * F.softplus(-o) + (1 - y) * F.softplus(o)).mean(),
        lambda o, y: (F.softplus(o) - o * y).mean() + 1e-3 * o.square().mean(),
    ],
)
def test_a_cross_entropy_of_scores_without_a_sigmoid(watched, loss_of):
    for step, y in trained(watched, loss_of, ones):
        np.testing.assert_array_equal(step.values["sample/BCEWithLogitsLoss_input_1"], y.numpy())
        given = torch.tensor(step.values["sample/BCEWithLogitsLoss_input_0"])
        value = F.binary_cross_entropy_with_logits(given, y).item()
        assert step.scalars["BCEWithLogitsLoss_part_0"] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (F.softplus(o) - 2 * o.tanh() * y).mean(),  # of something else
        lambda o, y: F.softplus(-o).mean(),  # of a GAN
        lambda o, y: (F.softplus(o) + o * y).mean(),
        lambda o, y: (F.softplus(o) - o * 3 * y).mean(),
        lambda o, y: F.softplus(o).mean() - (o * torch.ones(ROWS, CLASSES)).mean(),
        lambda o, y: (F.relu(o) - o * y).mean(),
    ],
)
def test_what_is_no_such_cross_entropy(watched, loss_of):
    for step, _ in trained(watched, loss_of, ones):
        assert not any("BCE" in name for name in step.values)
