"""Weights that something else than their optimizer sets between its updates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

ROLES = {14}


def told(session):
    return sorted(event["optimizer"] for event in session.json_events if event["kind"] == "weights_set")


def train(models, between, steps=30):
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(steps):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)).backward()
            optimizer.step()
        with torch.no_grad():
            between(models, step)


def averaged(models, step):
    means = [
        sum(p.clone() for p in of) / len(models) for of in zip(*(m.parameters() for m in models), strict=True)
    ]
    for model in models:
        for parameter, mean in zip(model.parameters(), means, strict=True):
            parameter.copy_((parameter + mean) / 2)


def averaged_by_data(models, step):
    """No counter of writes shows it."""
    for of in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(parameter.data for parameter in of) / len(of)
        for parameter in of:
            parameter.data.copy_(mean)


def averaged_biases(models, step):
    mean = sum(model.bias.clone() for model in models) / len(models)
    for model in models:
        model.bias.copy_(mean)


@pytest.mark.parametrize(
    ("between", "copies", "expected"),
    [
        (averaged, 3, [0, 1, 2]),
        (averaged_by_data, 3, [0, 1, 2]),
        (averaged_biases, 3, [0, 1, 2]),
        (lambda models, step: averaged(models, step) if step % 8 == 7 else None, 3, [0, 1, 2]),  # local steps
        (lambda models, step: None, 3, []),
        (lambda models, step: averaged(models, step) if step == 3 else None, 3, []),  # once
        (lambda models, step: models[0].weight.clamp_(-0.01, 0.01), 1, []),  # nobody is beside it
    ],
)
def test_weights_that_are_averaged_between_updates_are_told(watched, between, copies, expected):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    train([copy.deepcopy(model) for _ in range(copies)], between)
    assert told(session) == expected


def test_what_is_looked_at_is_let_go(watched):
    hook, _ = watched(ROLES)
    train([nn.Linear(6, 3)], lambda models, step: None)
    assert hook.machine.evidence._set._looks == {}
    assert not hook.machine.evidence._set.on
