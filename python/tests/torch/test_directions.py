"""Which way optimizers move what goes into a loss, and what is added to it."""

from __future__ import annotations

import cases
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from luff.torch.patches import _functional
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


@pytest.fixture
def functional(monkeypatch):
    """Wraps the functional losses for one test, as ``luff run`` does."""
    for name in (*_functional._KINDS, *_functional._DROPOUTS):
        monkeypatch.setattr(F, name, getattr(F, name), raising=False)
    _functional.install.__wrapped__()


def _told_to_maximise(watched, objective, optimizers_of) -> list[tuple[list[str], bool]]:
    _, session = watched(ROLES)
    model, other = nn.Linear(6, 3), nn.Parameter(torch.zeros(6))
    optimizers = optimizers_of(model, other)
    for x, y in cases.batches(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        objective(F.cross_entropy(model(x + other), y)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [(e["losses"], e.get("optimizer", False)) for e in session.json_events if e["kind"] == "maximised"]


def test_an_optimizer_that_maximises_a_loss_is_told(watched, functional):
    def up(parameters):
        return torch.optim.SGD(parameters, lr=0.01, maximize=True)

    told = _told_to_maximise(watched, lambda loss: loss, lambda model, other: [up(model.parameters())])
    assert told == [(["CrossEntropyLoss"], True)]


@pytest.mark.parametrize(
    ("objective", "optimizers_of"),
    [
        # A likelihood is made larger.
        (
            lambda loss: -loss,
            lambda model, other: [torch.optim.SGD(model.parameters(), 0.01, maximize=True)],
        ),
        # An adversary, or multipliers of a constraint.
        (
            lambda loss: loss,
            lambda model, other: [
                torch.optim.SGD(model.parameters(), 0.01),
                torch.optim.SGD([other], 0.01, maximize=True),
            ],
        ),
        (
            lambda loss: loss,
            lambda model, other: [
                torch.optim.SGD([{"params": model.parameters()}, {"params": [other], "maximize": True}], 0.01)
            ],
        ),
        # A disturbance of the inputs, of a model that is not trained.
        (lambda loss: loss, lambda model, other: [torch.optim.SGD([other], 0.01, maximize=True)]),
        # A part that disturbs a model which nothing trains.
        (
            lambda loss: loss,
            lambda model, other: [torch.optim.SGD([model.bias], 0.01, maximize=True)],
        ),
        # A loss that is written as a gain.
        (
            lambda loss: (-loss).exp(),
            lambda model, other: [torch.optim.SGD(model.parameters(), 0.01, maximize=True)],
        ),
    ],
)
def test_who_maximises_on_purpose_is_not_told(watched, functional, objective, optimizers_of):
    assert _told_to_maximise(watched, objective, optimizers_of) == []


@pytest.mark.parametrize(
    ("objective", "others"),
    [
        (lambda loss, model: loss + model.weight.square().sum(), [1]),
        (lambda loss, model: loss + sum(p.abs().sum() for p in model.parameters()), [2]),
        (lambda loss, model: loss, []),
        (lambda loss, model: 2 * loss + 1, []),
        (lambda loss, model: model.weight.square().sum(), []),
    ],
)
def test_terms_beside_a_loss_are_told_once(watched, functional, objective, others):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        objective(F.cross_entropy(model(x), y), model).backward()
        optimizer.step()
    assert [e["others"] for e in session.json_events if e["kind"] == "summands"] == others
