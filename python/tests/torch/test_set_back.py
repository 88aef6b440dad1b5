"""Weights that are set back between updates: to those of the start, or drawn anew."""

from __future__ import annotations

import copy

import pytest
import torch
from test_evidence import told
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model, set_back, passes=4, batches=5, at_start=True, loader=False):
    x = torch.randn(16 * batches, 8, generator=torch.Generator().manual_seed(1))
    y = x[:, :4].argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(passes):
        if at_start:
            set_back(model)
        parts = zip(x.split(16), y.split(16), strict=True)
        for part, labels in DataLoader(TensorDataset(x, y), batch_size=16) if loader else parts:
            optimizer.zero_grad()
            F.cross_entropy(model(part), labels).backward()
            optimizer.step()
        if not at_start:
            set_back(model)


def set_backs(session):
    return [(event["to"], event["updates"]) for event in told(session, "weights_set_back")]


def first_of(model):
    first = copy.deepcopy(model.state_dict())
    return lambda model: model.load_state_dict(first)


def drawn(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()


def drawn_by_data(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.uniform_(-0.2, 0.2)


def head_drawn(model):
    model[2].reset_parameters()


def clipped(model):
    with torch.no_grad():
        for one in model.parameters():
            one.clamp_(-0.1, 0.1)


def smaller(model):
    """As `shrink and perturb` does."""
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.5).add_(0.01 * torch.randn_like(one))


def left(model):
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.0)


@pytest.mark.parametrize("at_start", [True, False])
def test_the_first_state_is_told_each_time(watched, at_start):
    _, session = watched()
    model = net()
    train(model, first_of(model), at_start=at_start)
    assert set_backs(session) == [("first", 5)] * 3


def test_weights_that_are_drawn_anew_are_told(watched):
    _, session = watched()
    train(net(), drawn)
    assert set_backs(session) == [("drawn", 5)] * 3


def test_writes_by_data_are_seen_where_a_loader_was_started(watched):
    _, session = watched()
    train(net(), drawn_by_data, loader=True)
    assert set_backs(session) == [("drawn", 5)] * 3


def test_one_seed_draws_the_first_state(watched):
    _, session = watched()
    train(net(), lambda model: (torch.manual_seed(0), drawn(model)))
    assert set_backs(session) == [("first", 5)] * 3


@pytest.mark.parametrize("write", [head_drawn, clipped, smaller, left])
@pytest.mark.parametrize("loader", [True, False])
def test_other_writes_are_none(watched, write, loader):
    _, session = watched()
    train(net(), write, loader=loader)
    assert set_backs(session) == []


def test_another_write_ends_it(watched):
    _, session = watched()
    model = net()
    back = first_of(model)
    turns = iter([left, back, back, clipped, back, back])
    train(model, lambda model: next(turns)(model), passes=6)
    assert set_backs(session) == [("first", 5), ("first", 5), ("", 5)]


def test_averages_that_are_swapped_in_and_out_are_none(watched):
    _, session = watched()
    model = net()
    average = copy.deepcopy(model)

    def swap(model):
        with torch.no_grad():
            for slow, own in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(own, 0.3)
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.state_dict())
        model.load_state_dict(kept)

    train(model, swap, passes=6, at_start=False)
    assert set_backs(session) == []


def test_a_training_without_writes_is_never_looked_at(watched, monkeypatch):
    from luff.torch.evidence import _set_back

    def became(self, now):
        raise AssertionError("it was looked at")

    monkeypatch.setattr(_set_back._Held, "became", became)
    _, session = watched()
    train(net(), lambda _: None, passes=3)
    assert set_backs(session) == []


class Spectral(nn.Module):
    """Weights of complex numbers, as of a Fourier operator."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.head = nn.Parameter(torch.randn(8, 16, dtype=torch.cfloat)), nn.Linear(16, 4)

    def forward(self, x):
        return self.head((x.to(torch.cfloat) @ self.weight).abs())


def test_complex_weights_are_read_without_a_word(watched, recwarn):
    _, session = watched()
    model = Spectral()
    train(model, first_of(model), loader=True)
    assert [to for to, _ in set_backs(session)] == ["first"] * 3
    assert not list(recwarn)


def test_weights_that_are_not_finite_are_read_without_a_word(watched, recwarn):
    def spoilt(model):
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(torch.inf)

    _, session = watched()
    train(net(), spoilt, at_start=False, loader=True)
    assert set_backs(session) == []
    assert not list(recwarn)
