"""Parameters that only some of the backward passes reach, and tensors in the place of parameters."""

from __future__ import annotations

import warnings

import pytest
import torch
from fake_session import DEFAULT_ROLES
from torch import nn
from torch.nn import functional as F


def foreign(session):
    return [event["foreign"] for event in session.json_events if event["kind"] == "reach"]


def train(watched, every, steps=70, register=False, own=False, trained_until=1000):
    """Trains a model, and at each `every`-th step one with layers in a plain list."""
    _, session = watched(DEFAULT_ROLES)
    model, outer = nn.Linear(4, 2), nn.Linear(4, 2)
    cells = [nn.Linear(4, 4) for _ in range(2)]
    if register:
        outer = nn.ModuleList([outer, *cells])
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (model, outer)]
    if own:
        optimizers.append(torch.optim.SGD([p for cell in cells for p in cell.parameters()], lr=0.01))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer, self.cells = outer, cells if not register else None

        def forward(self, x):
            for cell in cells:
                x = torch.tanh(F.linear(x, cell.weight, cell.bias))
            return (self.outer[0] if register else self.outer)(x)

    net = Net()
    for step in range(steps):
        turn = step % every == every - 1 and step < trained_until
        loss = F.cross_entropy((net if turn else model)(torch.randn(8, 4)), torch.randint(2, (8,)))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        optimizers[1 if turn else 0].step()
    return foreign(session)


@pytest.mark.parametrize("every", [1, 3])
def test_parameters_in_a_plain_list(watched, every):
    told = train(watched, every)
    assert sorted(map(str, (leaf["shape"] for leaf in told[-1]))) == ["[4, 4]", "[4, 4]", "[4]", "[4]"]
    assert all(leaf["optimizer"] is None for leaf in told[-1])


def test_parameters_that_belong_to_a_model_or_an_optimizer(watched):
    assert not any(train(watched, 3, register=True))
    told = train(watched, 3, own=True)
    assert all(leaf["optimizer"] for leaves in told for leaf in leaves)


def test_a_single_pass_tells_nothing(watched):
    assert not any(train(watched, 3, trained_until=3))


def test_tensors_in_the_place_of_parameters_cause_no_warning(watched):
    _, session = watched(DEFAULT_ROLES)
    model, shift = nn.Linear(4, 2), nn.Parameter(torch.zeros(2, 4))
    optimizer = torch.optim.SGD([shift], lr=0.1)
    plain = model.weight.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            del model._parameters["weight"]
            model._parameters["weight"] = plain + shift
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
    assert not [event for event in session.json_events if event["kind"] == "hook_error"]


def test_activations_of_a_single_row_are_no_losses(watched):
    """A script that calls `forward` calls the layers itself, and one row with one output is one number."""
    _, session = watched(DEFAULT_ROLES)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.squash = nn.Linear(2, 1), nn.Sigmoid()

        def forward(self, x):
            return self.squash(self.linear(x))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.MSELoss()(net.forward(torch.randn(2)), torch.ones(1)).backward()
        optimizer.step()
    assert [loss["type"] for loss in session.documents["model"]["losses"]] == ["MSELoss"]
