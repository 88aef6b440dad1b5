"""Softmaxes along the first axis of several: the event `softmax_first_axis`."""

from __future__ import annotations

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


class Attention(nn.Module):
    def __init__(self, axis, flat=True):
        super().__init__()
        self.score, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.axis, self.flat = axis, flat

    def forward(self, x):
        scores = self.score(x)
        weights = (scores.flatten(0, 1) if self.flat else scores).softmax(self.axis)
        return self.head(weights.view_as(scores).sum(1))


def events(watched, model, rows=8, length=5):
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(torch.randn(rows, length, 6)), torch.randint(3, (rows,))).backward()
        optimizer.step()
    return [event["shape"] for event in session.json_events if event["kind"] == "softmax_first_axis"]


@pytest.mark.parametrize("axis", [0, -2])
def test_the_batch_and_places_are_one_axis(watched, axis):
    assert events(watched, Attention(axis)) == [[40, 5]]


def test_the_batch_is_the_first_of_three_axes(watched):
    assert events(watched, Attention(0, flat=False)) == [[8, 5, 5]]


@pytest.mark.parametrize(("axis", "flat"), [(1, True), (-1, False), (1, False)])
def test_places_and_features(watched, axis, flat):
    assert events(watched, Attention(axis, flat)) == []


def test_an_axis_of_one(watched):
    assert events(watched, Attention(0, flat=False), rows=1) == []


def test_weights_of_a_whole(watched):
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.shares, self.head = nn.Parameter(torch.zeros(6)), nn.Linear(6, 3)

        def forward(self, x):
            return self.head((x * self.shares.softmax(0)).sum(1))

    assert events(watched, Mixture()) == []
