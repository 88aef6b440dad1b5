"""Loops that never come round, in which updates stand."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from luff.torch.evidence._early_ends import loop_around
from test_evidence import told
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SEEN: list[bool | None] = []


def here():
    frame = sys._getframe(1)
    found = loop_around(frame.f_code, frame.f_lasti)
    SEEN.append(None if found is None else found[0])


def breaks():
    for _ in range(2):
        for _ in range(5):
            here()
            break


def breaks_behind_more():
    for k in range(2):
        for _, (_, _) in enumerate([(1, 2), (3, 4)]):
            with contextlib.nullcontext():
                here()
            others = [one + k for one in range(3)]
            for one in others:
                others[0] += one
            if k > 5:
                others = []
            break
        else:
            others = None


def returns():
    def epoch():
        for number in range(5):
            here()
            return number

    for _ in range(2):
        epoch()


def breaks_behind_try():
    for _ in range(2):
        for _ in range(4):
            try:
                here()
            except RuntimeError:
                SEEN.append(None)
            break


def comes_round():
    for _ in range(2):
        for number in range(5):
            here()
            if number == 3:
                break


def leaves_some_out():
    for _ in range(2):
        for number in range(5):
            if number == 0:
                continue
            here()
            break


def tries_again():
    for _ in range(3):
        try:
            here()
        except RuntimeError:
            continue
        break


def whiles():
    count = 0
    while count < 3:
        here()
        count += 1
    while True:
        here()
        count += 1
        if count > 6:
            break


def first_fold():
    for _ in range(5):
        for _ in range(2):
            for _ in range(2):
                here()
        break


def straight():
    here()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (breaks, False),
        (breaks_behind_more, False),
        (returns, False),
        (breaks_behind_try, False),
        (comes_round, True),
        (leaves_some_out, True),
        (tries_again, True),
        (whiles, True),
        (first_fold, True),
        (straight, None),
    ],
)
def test_whether_the_innermost_loop_comes_round(function, expected):
    SEEN.clear()
    function()
    assert set(SEEN) == {expected}


X = torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
Y = X[:, :4].argmax(1)


def network():
    model = nn.Linear(8, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def looks(session):
    return [(event["updates"], event["over"]) for event in told(session, "early_end")]


def test_a_break_is_told_with_its_place(watched):
    _, session = watched()
    model, optimizer = network()
    for _ in range(9):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=16):
            update(model, optimizer, x, y)
            break
    assert looks(session) == [(1, False), (2, False), (4, False), (8, False)]
    event = told(session, "early_end")[-1]
    assert event["function"] == "test_a_break_is_told_with_its_place"
    assert event["line"] > 0


def test_a_return_in_a_helper_is_told(watched):
    _, session = watched()
    model, optimizer = network()

    def epoch():
        for first in range(0, 80, 16):
            update(model, optimizer, X[first : first + 16], Y[first : first + 16])
            return first

    for _ in range(5):
        epoch()
    assert looks(session) == [(1, False), (2, False), (4, False)]


def test_a_first_batch_that_is_tried_ends_it(watched):
    _, session = watched()
    model, optimizer = network()
    for _ in range(3):
        for x in X.split(16):
            update(model, optimizer, x, Y[:16])
            break
    for _ in range(6):
        update(model, optimizer, X, Y)
    assert looks(session) == [(1, False), (2, False), (4, True)]


def test_loops_that_come_round_are_not_told(watched):
    _, session = watched()
    model, optimizer = network()
    for fold in range(3):
        for x in X.split(16):
            update(model, optimizer, x, Y[:16])
        if fold < 5:
            break
    assert looks(session) == []


def test_a_batch_for_each_of_another_loader_is_not_told(watched):
    _, session = watched()
    model, optimizer = network()
    labelled = DataLoader(TensorDataset(X, Y), 16, shuffle=True)
    for (x,) in DataLoader(TensorDataset(X), 8):
        for first, second in labelled:
            model(x)
            update(model, optimizer, first, second)
            break
    assert looks(session) == []


def test_a_loader_that_was_left_does_not_hide_a_break(watched):
    _, session = watched()
    model, optimizer = network()
    loader, other = DataLoader(TensorDataset(X, Y), 16, shuffle=True), DataLoader(TensorDataset(X), 8)
    for _ in range(5):
        for x, y in loader:
            update(model, optimizer, x, y)
            break
        for _ in other:
            break
    assert looks(session) == [(1, False), (2, False), (4, False)]
