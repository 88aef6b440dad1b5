"""Forward passes with gradients of which no backward pass uses any but the last."""

from __future__ import annotations

import cases
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


def told(session):
    return [event for event in session.json_events if event["kind"] == "unused_passes"]


def trained(watched, model, passes_of, steps=5):
    """Trains; `passes_of` calls the model for several batches and returns the root."""
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        passes_of(model, list(cases.batches(5)), step).backward()
        optimizer.step()
    return told(session)


def the_last(model, data, _):
    for x, _ in data:
        out = model(x)
    return F.cross_entropy(out, data[-1][1])


def the_last_of_losses_of_its_own(model, data, _):
    for x, y in data:
        loss = -(F.log_softmax(model(x), 1) * F.one_hot(y, 3)).sum(1).mean()
    return loss


class Pair(nn.Module):
    """Returns a dict."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        return {"scores": self.one(x), "value": self.other(x)}


def the_last_of_two_outputs(model, data, _):
    for x, _ in data:
        out = model(x)
    return F.cross_entropy(out["scores"], data[-1][1])


@pytest.mark.parametrize(
    ("model", "passes_of", "name"),
    [
        (nn.Linear(6, 3), the_last, "Linear"),
        (nn.Linear(6, 3), the_last_of_losses_of_its_own, "Linear"),
        (Pair(), the_last_of_two_outputs, "Pair"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)), the_last, "Sequential"),
    ],
)
def test_all_but_the_last_are_told(watched, model, passes_of, name):
    event = {"kind": "unused_passes", "model": name, "made": 5, "used": 1}
    assert trained(watched, model, passes_of) == [event] * 4  # not of the first step, which opens the run


def summed(model, data, _):
    return sum(F.cross_entropy(model(x), y) for x, y in data)


def kept(model, data, _):
    """A later backward pass may use them."""
    model.outputs = [model(x) for x, _ in data]
    return F.cross_entropy(model.outputs[-1], data[-1][1])


def three(model, data, _):
    return the_last(model, data[:3], 0)


def the_first(model, data, _):
    first = model(data[0][0])
    for x, _ in data[1:]:
        model(x)
    return F.cross_entropy(first, data[0][1])


def looked_at(model, data, _):
    """As a gradient penalty, or inner steps, look at earlier passes."""
    for x, _ in data[:-1]:
        x = x.clone().requires_grad_()
        torch.autograd.grad(model(x).sum(), x)
    return F.cross_entropy(model(data[-1][0]), data[-1][1])


def played(model, data, _):
    """A policy is asked for each action, and then learns from all of them."""
    states = torch.cat([x[:1] for x, _ in data])
    for state in states:
        model(state[None])
    return F.cross_entropy(model(states), torch.zeros(len(states), dtype=torch.long))


def without_gradients(model, data, _):
    with torch.no_grad():
        for x, _ in data[:-1]:
            model(x)
    return F.cross_entropy(model(data[-1][0]), data[-1][1])


def later_only(model, data, step):
    return the_last(model, data if step != 2 else data[-1:], 0)


class Stateful(nn.Module):
    """Keeps its state itself, as spiking networks do."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)
        self.state = 0

    def forward(self, x):
        self.state = torch.tanh(self.inner(x) + self.state)
        return self.outer(self.state)


def of_a_sequence(model, data, _):
    model.state = 0
    for x, _ in data:
        out = model(x[:2])
    return F.cross_entropy(out, data[-1][1][:2])


@pytest.mark.parametrize(
    ("model", "passes_of"),
    [
        (nn.Linear(6, 3), summed),
        (nn.Linear(6, 3), kept),
        (nn.Linear(6, 3), three),
        (nn.Linear(6, 3), the_first),
        (nn.Linear(6, 3), looked_at),
        (nn.Linear(6, 3), played),
        (nn.Linear(6, 3), without_gradients),
        (Stateful(), of_a_sequence),
    ],
)
def test_passes_that_are_used_kept_or_few_are_silent(watched, model, passes_of):
    assert trained(watched, model, passes_of) == []


def test_a_step_that_uses_all_ends_the_question(watched):
    assert len(trained(watched, nn.Linear(6, 3), later_only)) == 1


def test_evaluations_with_gradients_between_updates_are_silent(watched):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in cases.batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for x, _ in cases.batches(5):
            model(x)
    assert told(session) == []


def test_a_generator_and_a_critic_are_silent(watched):
    _, session = watched(ROLES)
    cases.two_optimizers_gan()
    assert told(session) == []
