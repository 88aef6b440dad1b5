"""Models that are evaluated with the running statistics of the start."""

from __future__ import annotations

import copy

import torch
from test_evidence import told
from torch import nn
from torch.nn import functional as F


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def train_beside(model, average, move, epochs=5, frozen=False):
    """Trains a model, moves another after each update, and evaluates both after each epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average.eval()
    for _ in range(epochs):
        model.train(not frozen)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 5)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
            with torch.no_grad():
                move(model, average)
        model.eval()
        with torch.no_grad():
            for one in (model, average):
                F.cross_entropy(one(torch.randn(16, 5)), torch.randint(0, 3, (16,)))


def weights_only(model, average):
    for mean, new in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(new, 0.1)


def weights_as_data(model, average):
    for mean, new in zip(average.parameters(), model.parameters(), strict=True):
        mean.data = mean.data * 0.9 + new.data * 0.1


def everything(model, average):
    weights_only(model, average)
    for mean, new in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(new)


def test_an_average_that_leaves_buffers_out_is_told(watched):
    for move in (weights_only, weights_as_data):
        hook, session = watched()
        model = net()
        train_beside(model, copy.deepcopy(model), move)
        hook.close()
        (event,) = told(session, "initial_statistics")
        assert event["layers"] == 1
        assert event["model"] != "Sequential"


def test_averages_with_buffers_frozen_copies_and_the_model_itself_are_not(watched):
    for move in (everything, lambda model, average: None):
        hook, session = watched()
        model = net()
        train_beside(model, copy.deepcopy(model), move)
        hook.close()
        assert told(session, "initial_statistics") == []


def test_layers_that_are_kept_as_they_are_on_purpose_are_not(watched):
    hook, session = watched()
    model = net()
    train_beside(model, copy.deepcopy(model), weights_only, frozen=True)
    hook.close()
    assert told(session, "initial_statistics") == []


def test_statistics_that_come_late_take_it_back(watched):
    _, session = watched()
    model = net()
    average = copy.deepcopy(model)
    train_beside(model, average, weights_only)
    train_beside(model, average, everything, epochs=8)
    assert [event["layers"] for event in told(session, "initial_statistics")] == [1, 0]
