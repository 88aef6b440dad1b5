"""Optimizers that hold nothing of a model that is called, and get gradients all the same."""

from __future__ import annotations

import copy

import cases
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def handed(session) -> list[int]:
    return [event["optimizer"] for event in session.json_events if event["kind"] == "gradients_handed"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def slopes_of(model, x, y) -> None:
    F.cross_entropy(model(x), y).backward()


def assigned(model, learner) -> None:
    for own, other in zip(model.parameters(), learner.parameters(), strict=True):
        own.grad = other.grad


def added(model, learner) -> None:
    for own, other in zip(model.parameters(), learner.parameters(), strict=True):
        own.grad = other.grad.clone() if own.grad is None else own.grad.add_(other.grad)


def differences(model, learner) -> None:
    for own, other in zip(model.parameters(), learner.parameters(), strict=True):
        own.grad = own.detach() - other.detach() + 0.1 * other.grad


def copied(model, learner) -> None:
    for own, other in zip(model.parameters(), learner.parameters(), strict=True):
        if own.grad is None:
            own.grad = torch.zeros_like(own)
        own.grad.copy_(other.grad)


@pytest.mark.parametrize("hand", [assigned, added, differences, copied])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_copies_are_handed_over(watched, hand, to_none):
    _, session = watched()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in cases.batches(6):
        learner = copy.deepcopy(model)
        slopes_of(learner, x, y)
        optimizer.zero_grad(set_to_none=to_none)
        hand(model, learner)
        optimizer.step()
    assert handed(session) == [0]


def test_inner_optimizers_are_none_of_them(watched):
    _, session = watched()
    model = net()
    outer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in cases.batches(4):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(2):
            inner.zero_grad()
            slopes_of(learner, x, y)
            inner.step()
        assigned(model, learner)
        outer.step()
    assert handed(session) == [0]


def test_weights_of_full_precision_beside_a_model_of_half(watched):
    _, session = watched()
    model = net().bfloat16()
    weights = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for x, y in cases.batches(4):
        model.zero_grad()
        slopes_of(model, x.bfloat16(), y)
        for own, other in zip(weights, model.parameters(), strict=True):
            own.grad = other.grad.float()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(weights, model.parameters(), strict=True):
                other.copy_(own)
    assert handed(session) == [0]


def test_infinite_gradients_that_are_handed_over_print_nothing(watched, recwarn):
    _, session = watched()
    model = net()
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    for x, y in cases.batches(4):
        model.zero_grad()
        slopes_of(model, x, y)
        for own, other in zip(weights, model.parameters(), strict=True):
            own.grad = other.grad * float("inf")
        optimizer.step()
    assert handed(session) == [0]
    assert not recwarn.list


def test_an_input_that_is_trained_gets_its_gradients(watched):
    _, session = watched()
    model, picture = net(), torch.randn(4, 6, requires_grad=True)
    optimizer = torch.optim.Adam([picture], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(picture).square().mean().backward()
        optimizer.step()
    assert handed(session) == [0]


def unscaled(optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def cleared(optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "touch", [lambda optimizer: None, unscaled, cleared, torch.optim.Optimizer.zero_grad]
)
def test_an_optimizer_of_a_model_that_was_copied_is_handed_nothing(watched, before, touch):
    """Also where the model was trained before, and what is left of its gradients is scaled or cleared."""
    _, session = watched()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if before:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    model = copy.deepcopy(model)
    for x, y in cases.batches(8):
        model.zero_grad()
        slopes_of(model, x, y)
        touch(optimizer)
        optimizer.step()
    assert handed(session) == []


@pytest.mark.parametrize(
    "name",
    sorted(set(cases.CASES) - {"compiled", "compiled_in_place_with_step", "loader_workers", "scripted"}),
)
def test_ordinary_trainings(watched, name):
    _, session = watched()
    cases.CASES[name]()
    assert handed(session) == []
