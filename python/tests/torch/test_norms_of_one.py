"""Numbers that are normalised alone: the event `norm_of_one`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
GATE = ["Net_gate.bias", "Net_gate.weight"]
ONE = ["Net_one.bias", "Net_one.weight"]


class Net(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.gate, self.one, self.head = nn.Linear(6, 4), nn.Linear(6, 1), nn.Linear(6, 3)
        self.inside, self.extra = inside, 0.0

    def forward(self, x):
        return self.head(x) * self.inside(self, x)


def best(net, x, k=1, balance=False, again=True):
    scores = net.gate(x).softmax(-1)
    weights, chosen = torch.topk(scores, k, dim=-1)
    if again:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    if balance:
        net.extra = (F.one_hot(chosen[:, 0], 4).float().mean(0) * scores.mean(0)).sum()
    return weights[:, :1]


def supervised(net, x):
    weights = best(net, x)
    net.extra = F.cross_entropy(net.gate(x), torch.zeros(len(x), dtype=torch.int64))
    return weights


def over_own_sum(h, axis=-1):
    return h / h.sum(axis, keepdim=True)


def less_own_mean(h):
    return h - h.mean(1, keepdim=True)


def events(watched, inside, steps=9, rows=lambda step: 8):
    _, session = watched(ROLES)
    torch.manual_seed(0)
    model = Net(inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        n = rows(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(n, 6)), torch.randint(3, (n,)))
        (loss + model.extra).backward()
        optimizer.step()
    return [(e["of"], e["layers"]) for e in session.json_events if e["kind"] == "norm_of_one"]


@pytest.mark.parametrize(
    ("inside", "of", "names"),
    [
        (best, "sum", GATE),
        (lambda net, x: best(net, x, balance=True), "sum", GATE),
        (lambda net, x: net.gate(x).topk(1, -1)[0].softmax(-1), "best", GATE),
        (lambda net, x: over_own_sum(net.gate(x).softmax(-1).max(-1, keepdim=True)[0]), "sum", GATE),
        (lambda net, x: over_own_sum(net.one(x).exp()), "sum", ONE),
        (lambda net, x: over_own_sum(net.one(x).sigmoid().unsqueeze(1), 1).squeeze(1), "sum", ONE),
        (lambda net, x: F.normalize(net.one(x), dim=-1), "length", ONE),
        (
            lambda net, x: net.one(x) / net.one(x).norm(dim=1, keepdim=True),
            "",
            None,
        ),  # two calls: not followed
        (lambda net, x: 1 + less_own_mean(net.one(x)), "mean", ONE),
        (lambda net, x: 1 + F.layer_norm(net.one(x), (1,)), "layer", ONE),
        (lambda net, x: 1 + F.group_norm(net.gate(x), 4)[:, :1], "group", GATE),
    ],
)
def test_parameters_behind_a_constant(watched, inside, of, names):
    assert events(watched, inside) == ([(of, names)] if names else [])


@pytest.mark.parametrize(
    "inside",
    [
        lambda net, x: best(net, x, k=2),
        lambda net, x: best(net, x, again=False),
        supervised,  # scores that learn elsewhere
        lambda net, x: best(net, x) * net.gate(x)[:, :1],
        lambda net, x: over_own_sum(net.gate(x).exp())[:, :1],
        lambda net, x: net.one(x) / net.one(x).sum(),
        lambda net, x: net.one(x) / net.one(x).detach(),  # 1 with a gradient
        lambda net, x: less_own_mean(net.gate(x))[:, :1],
        lambda net, x: net.one(x) - net.one(x).mean(0, keepdim=True),
        lambda net, x: F.normalize(net.gate(x), dim=-1)[:, :1],
        lambda net, x: F.layer_norm(net.gate(x), (4,))[:, :1],
        lambda net, x: F.group_norm(net.gate(x), 2)[:, :1],
        lambda net, x: 1 + net.one(x) + F.layer_norm(net.one(x), (1,)),  # a residual
        lambda net, x: F.group_norm(net.gate(x)[:, :, None].expand(-1, -1, 5) * x[:, None, :5], 4).mean(2)[
            :, :1
        ],
    ],
)
def test_numbers_that_say_something(watched, inside):
    assert events(watched, inside) == []


def test_an_axis_that_has_one_place_now_and_then(watched):
    inside = lambda net, x: over_own_sum(net.one(x).sigmoid(), 0)  # noqa: E731
    assert events(watched, inside, rows=lambda step: 1 if step in (0, 1, 4) else 4) == []


def test_another_loss_that_reaches_them(watched):
    def inside(net, x):
        return best(net, x) if net.odd else net.gate(x)[:, :1]

    _, session = watched(ROLES)
    model = Net(inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(9):
        optimizer.zero_grad()
        for model.odd in (False, True):
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()
    told = [e["layers"] for e in session.json_events if e["kind"] == "norm_of_one"]
    assert not told or told[-1] == []
