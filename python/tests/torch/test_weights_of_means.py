"""Weights of samples that multiply a mean of the samples' losses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._loss_formula import UNDECIDED, LossFormula, fault_of
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, CLASSES = 8, 3
CLASS = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0])
YES = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0])
VALUE = torch.linspace(-1, 2, ROWS)
WEIGHT = torch.tensor([1.0, 3, 2, 2, 1, 3, 3, 1])
FAULT = "weights_without_effect"


def graph(formula: Callable[[Tensor], Tensor], outputs: int = CLASSES) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))
    return fault_of(formula(model(torch.randn(ROWS, 4))).grad_fn)


def of_one(formula: Callable[[Tensor], Tensor]) -> str:
    return graph(lambda z: formula(z.squeeze(1)), outputs=1)


def taken(z: Tensor) -> Tensor:
    return F.log_softmax(z, 1)[torch.arange(ROWS), CLASS]


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: (F.cross_entropy(z, CLASS) * WEIGHT).mean(),
        lambda z: (WEIGHT * nn.CrossEntropyLoss()(z, CLASS)).mean(),
        lambda z: torch.sum(F.cross_entropy(z, CLASS) * WEIGHT) / WEIGHT.sum(),
        lambda z: torch.mean(F.cross_entropy(z, CLASS, label_smoothing=0.1) * WEIGHT),
        lambda z: (F.nll_loss(F.log_softmax(z, 1), CLASS) * WEIGHT[:, None]).mean() + 0.1 * z.square().mean(),
        lambda z: (F.cross_entropy(z, CLASS) * (CLASS > 0).float()).sum() / (CLASS > 0).sum(),  # a mask
        lambda z: (F.mse_loss(z, VALUE[:, None].repeat(1, CLASSES)) * WEIGHT).mean(),
        lambda z: -torch.sum(taken(z).mean() * VALUE),  # the mean of the log-probabilities, and returns
        lambda z: (-taken(z).mean() * VALUE).mean(),
        lambda z: ((F.cross_entropy(z, CLASS) + z.square().mean()) * WEIGHT).mean(),  # both are one number
        lambda z: (-VALUE * taken(z).sum().div(ROWS)).sum() - (taken(z).mean() * VALUE).sum(),
    ],
)
def test_weights_of_a_mean_have_no_effect(formula: Callable[[Tensor], Tensor]) -> None:
    assert graph(formula) == FAULT


def test_losses_of_one_output() -> None:
    bce = F.binary_cross_entropy_with_logits
    assert of_one(lambda z: (bce(z, YES) * WEIGHT).mean()) == FAULT
    assert of_one(lambda z: (F.binary_cross_entropy(z.sigmoid(), YES) * WEIGHT).sum()) == FAULT
    assert of_one(lambda z: (F.smooth_l1_loss(z, VALUE) * WEIGHT).mean()) == FAULT
    assert of_one(lambda z: ((z - VALUE).square().mean() * WEIGHT).mean()) == FAULT
    assert of_one(lambda z: (bce(z, YES, reduction="none") * WEIGHT).mean()) == ""
    assert of_one(lambda z: bce(z, YES, weight=WEIGHT)) == ""


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: (F.cross_entropy(z, CLASS, reduction="none") * WEIGHT).mean(),
        lambda z: F.cross_entropy(z, CLASS) * WEIGHT.mean(),  # one number
        lambda z: (F.cross_entropy(z, CLASS) * WEIGHT[:1]).mean(),
        lambda z: (F.cross_entropy(z, CLASS) * WEIGHT[:5]).sum(),  # weights of something else
        lambda z: (F.cross_entropy(z, CLASS) * WEIGHT.clone().requires_grad_()).mean(),  # learnt
        lambda z: F.cross_entropy(z, CLASS, weight=WEIGHT[:CLASSES]),
        lambda z: -(taken(z) * VALUE).sum(),
        lambda z: -(taken(z) * VALUE.sum()).mean(),
        lambda z: -taken(z).mean() * 3.5,
        lambda z: -(taken(z).sum() * VALUE).sum(),  # the return of an episode is the sum of its rewards
        lambda z: (F.cross_entropy(z[:1], CLASS[:1]) * WEIGHT[:1]).mean(),
        lambda z: F.cross_entropy(z * WEIGHT[:, None], CLASS),
        lambda z: (F.softmax(z, 1) * VALUE[:, None]).mean(),
        lambda z: (z.mean(0) * VALUE[:CLASSES]).sum(),
        # A mean beside values of the samples, whose weights have an effect.
        lambda z: ((z[:, 0].square().mean() + F.cross_entropy(z, CLASS, reduction="none")) * WEIGHT).mean(),
        lambda z: ((F.mse_loss(z[:, 0], VALUE) + (z[:, 1] - VALUE).square()) * WEIGHT).mean(),
    ],
)
def test_weights_of_samples_and_single_numbers_have_one(formula: Callable[[Tensor], Tensor]) -> None:
    assert graph(formula) != FAULT


def test_a_batch_whose_weights_are_alike_tells_nothing() -> None:
    formula, alike = LossFormula(), torch.ones(ROWS)
    z = torch.randn(ROWS, CLASSES, requires_grad=True)
    assert fault_of((F.cross_entropy(z, CLASS) * alike).mean().grad_fn) == UNDECIDED
    for weight in (alike, WEIGHT, alike, WEIGHT):
        formula.root((F.cross_entropy(z, CLASS) * weight).mean())
    assert [one["fault"] for one in formula.waiting] == [FAULT]
    formula.root(F.cross_entropy(z, CLASS))
    assert [one["fault"] for one in formula.waiting] == [FAULT, ""]


def test_a_training_tells(watched) -> None:
    _, session = watched(DEFAULT_ROLES)
    model = nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = (F.cross_entropy(model(torch.randn(ROWS, 4)), CLASS) * WEIGHT).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [e["fault"] for e in session.json_events if e["kind"] == "loss_formula"] == [FAULT]
