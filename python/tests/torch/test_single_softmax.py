"""Softmaxes over the only output of a layer: the event `softmax_of_one`."""

from __future__ import annotations

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


class Attention(nn.Module):
    def __init__(self, axis, scores=1):
        super().__init__()
        self.score = nn.Linear(6, scores)
        self.head = nn.Linear(6, 3)
        self.axis = axis

    def forward(self, x):
        weights = self.score(x).softmax(self.axis)
        return self.head((weights[..., :1] * x).sum(1))


def events(watched, model, length=5):
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(torch.randn(8, length, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()
    return [event["layers"] for event in session.json_events if event["kind"] == "softmax_of_one"]


@pytest.mark.parametrize("axis", [-1, 2])
def test_weights_over_an_axis_of_one_value(watched, axis):
    assert events(watched, Attention(axis)) == [["Attention_score.weight"]]


def test_values_that_lie_otherwise_in_memory(watched):
    class Turned(Attention):
        def forward(self, x):
            return super().forward(x.transpose(0, 1).contiguous().transpose(0, 1))

    assert events(watched, Turned(-1)) == [["Turned_score.weight"]]


def test_weights_over_places(watched):
    assert events(watched, Attention(1)) == []


def test_a_single_place(watched):
    assert events(watched, Attention(1), length=1) == []


def test_two_outputs(watched):
    assert events(watched, Attention(-1, 2)) == []


def test_a_last_axis_that_is_another(watched):
    class Turned(Attention):
        def forward(self, x):
            weights = self.score(x).transpose(1, 2).softmax(-1).transpose(1, 2)
            return self.head((weights * x).sum(1))

    assert events(watched, Turned(0)) == []
    assert events(watched, Turned(0), length=1) == []


def test_a_probability_of_one_output(watched):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)
            self.other = nn.Linear(6, 3)

        def forward(self, x):
            return self.other(x[:, 0]) * torch.softmax(self.layer(x[:, 0]), dim=1)

    assert events(watched, Net()) == [["Net_layer.weight"]]
