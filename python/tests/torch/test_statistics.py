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


def train_further(move, teacher_trains=False, frozen=False, shift=3.0):
    """Trains a model, then goes on with other inputs beside a copy."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(x):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(0, 3, (len(x),))).backward()
        optimizer.step()

    for _ in range(20):
        update(torch.randn(16, 5))
    average = copy.deepcopy(model)
    model.train(not frozen)
    average.train(teacher_trains)
    for _ in range(20):
        update(shift + torch.randn(16, 5))
        with torch.no_grad():
            move(model, average)
            average(shift + torch.randn(16, 5))


def test_statistics_of_a_copy_that_stand_still_are_told(watched):
    _, session = watched()
    train_further(weights_only)
    events = told(session, "initial_statistics")
    assert [(event["layers"], event["kept"]) for event in events] == [(1, True)]


def test_statistics_that_stand_still_without_harm_are_not(watched):
    for how in (
        {"move": everything},
        {"move": weights_only, "teacher_trains": True},
        {"move": weights_only, "frozen": True},
        {"move": lambda model, average: None},
        {"move": weights_only, "shift": 0.0},
    ):
        hook, session = watched()
        train_further(**how)
        hook.close()
        assert told(session, "initial_statistics") == []
