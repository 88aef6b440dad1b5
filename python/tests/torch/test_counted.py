"""Evaluations that count all answers: the event `answers_counted`."""

from __future__ import annotations

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
X, Y = torch.randn(24, 6), torch.randint(4, (24,))
KEPT = Y > 0


def evaluated(watched, count):
    _, session = watched(ROLES)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(X), Y).backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(3):
            count(model(X).argmax(1))
        model(X)
    return [event for event in session.json_events if event["kind"] == "answers_counted"]


COUNTED = {
    "mean": lambda answers: (answers == Y).float().mean(),
    "sum": lambda answers: (answers == Y).sum().item() / len(Y),
    "eq": lambda answers: answers.eq(Y).cpu().double().mean(),
    "wrong": lambda answers: (answers != Y).sum(),
    "of an axis": lambda answers: (answers == Y).float().sum(0),
}
MASKED = {
    "product": lambda answers: ((answers == Y) * KEPT).sum(),
    "and": lambda answers: ((answers == Y) & KEPT).sum(),
    "converted": lambda answers: ((answers == Y).float() * KEPT).sum(),
    "index": lambda answers: (answers == Y)[KEPT].float().mean(),
    "rows": lambda answers: (answers[KEPT] == Y[KEPT]).float().mean(),
    "stored": lambda answers: [right := answers == Y, right[KEPT].sum()],
    "list": lambda answers: (answers == Y).tolist(),
}


@pytest.mark.parametrize("count", COUNTED.values(), ids=COUNTED)
def test_all_are_counted(watched, count):
    assert evaluated(watched, count) == [{"kind": "answers_counted", "loss": "CrossEntropyLoss", "call": 0}]


@pytest.mark.parametrize("count", MASKED.values(), ids=MASKED)
def test_some_may_be_left_out(watched, count):
    assert evaluated(watched, count) == []
