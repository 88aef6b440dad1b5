"""Gradients that are not cleared between two updates are recorded as events, and nothing else is."""

from __future__ import annotations

import cases
import pytest
import torch
import torch.nn.functional as F
from luff._codes import EventKind
from torch import nn

KEPT = EventKind.GRADIENT_KEPT


def kept(session):
    steps = session.train() + ([session.open] if session.open is not None else [])
    return [(subject, argument) for step in steps for kind, subject, argument in step.events if kind == KEPT]


def loop(clear, steps=8, before=None, optimizer_of=None):
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = (optimizer_of or (lambda p: torch.optim.SGD(p, lr=0.01)))(model.parameters())
    for x, y in cases.batches(steps):
        if before is not None:
            before(model, optimizer)
        loss = F.cross_entropy(model(x), y)
        clear(model, optimizer)
        loss.backward()
        optimizer.step()


def nothing(*_):
    return None


def test_never_cleared(watched):
    _, session = watched()
    loop(nothing)
    assert kept(session) == [(0, 4)] * 7


def test_never_cleared_but_clipped(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(4):
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    assert kept(session) == [(0, 2)] * 3


@pytest.mark.parametrize(
    "clear",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: model.zero_grad(),
        lambda model, optimizer: model.zero_grad(set_to_none=False),
        lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()],
        lambda model, optimizer: [p.grad.zero_() for p in model.parameters() if p.grad is not None],
        lambda model, optimizer: [p.grad.data.zero_() for p in model.parameters() if p.grad is not None],
        lambda model, optimizer: [setattr(p, "grad", torch.zeros_like(p)) for p in model.parameters()],
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_cleared_in_any_way(watched, clear, between):
    """Before the forward pass, or between it and the backward pass."""
    _, session = watched()
    loop(clear if between else nothing, before=None if between else clear)
    assert kept(session) == []


@pytest.mark.parametrize(
    "name",
    sorted(set(cases.CASES) - {"compiled", "compiled_in_place_with_step", "loader_workers", "scripted"}),
)
def test_healthy_trainings(watched, name):
    _, session = watched()
    cases.CASES[name]()
    assert kept(session) == []


def test_accumulation_without_clearing_is_told_once_an_update(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for index, (x, y) in enumerate(cases.batches(12)):
        F.cross_entropy(model(x), y).backward()
        if index % 3 == 2:
            optimizer.step()
    assert kept(session) == [(0, 2)] * 3


def test_one_of_two_optimizers(watched):
    _, session = watched()
    one, two = nn.Linear(6, 6), nn.Linear(6, 3)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, two))
    for x, y in cases.batches(4):
        first.zero_grad()
        F.cross_entropy(two(one(x)), y).backward()
        first.step()
        second.step()
    assert kept(session) == [(1, 2)] * 3


def test_what_a_backward_pass_does_not_reach_is_not_told(watched):
    _, session = watched()
    one, two = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.01)
    for index, (x, y) in enumerate(cases.batches(6)):
        used = one if index % 2 else two
        used.zero_grad()
        F.cross_entropy(used(x), y).backward()
        optimizer.step()
    assert kept(session) == []


def test_later_every_sixteenth_update_is_looked_at(watched):
    _, session = watched()
    loop(nothing, steps=64 + 33)
    assert len(kept(session)) == 64 + 2
