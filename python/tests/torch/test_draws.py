"""A replay draws what the step has drawn: masks of dropout, and batches that the loop draws with torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from luff._codes import Mode
from luff.torch.evidence import _evidence
from luff.torch.replay import _isolation
from luff.torch.replay._draws import Draws
from torch import nn

ROWS, STEPS = 64, 400


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Allows more time, for a loaded machine."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)
    monkeypatch.setattr(_isolation, "SECONDS", 60.0)


def told(watched, name):
    hook, session = watched()
    torch.manual_seed(3)
    PROGRAMS.pop(name)()  # once: a replay that finds nothing in the loop would begin the training again
    hook.close()
    events = [event for event in session.json_events if event["kind"] == "nonfinite"]
    assert events, "nothing was told"
    return events[0]


def call(number):
    return SimpleNamespace(forwards=number, mode=int(Mode.TRAIN))


def bad(model):
    return not all(bool(weight.isfinite().all()) for weight in model.parameters())


def masks_of_dropout():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    rows = torch.ones(2, 4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        lengths = model(rows).pow(2).sum(1).sqrt()  # NaN where a mask hides a whole row
        loss = lengths.mean()
        loss.backward()
        optimizer.step()
        if bad(model):
            return


def rows_that_the_loop_draws():
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Dropout(0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    rows = torch.ones(ROWS, 4)
    rows[7] = 0
    for _ in range(STEPS):
        drawn = torch.randint(0, ROWS, (1,))
        optimizer.zero_grad()
        lengths = model(rows[drawn]).pow(2).sum(1).sqrt()  # NaN in the row of zeros
        loss = lengths.mean()
        loss.backward()
        optimizer.step()
        if bad(model):
            return


PROGRAMS = {
    "masks of dropout": masks_of_dropout,
    "rows that the loop draws": rows_that_the_loop_draws,
}


@pytest.mark.parametrize("name", tuple(PROGRAMS))
def test_the_line_is_found_although_it_depends_on_what_was_drawn(watched, name):
    event = told(watched, name)
    assert event["from"] == "replay"
    assert "square root at zero" in event["reason"]
    assert "NaN" in event["code"]


def test_what_a_loader_draws_in_between_is_not_missing():
    model, draws = nn.Dropout(0.5), Draws()
    torch.manual_seed(0)
    draws.call_begins(model, call(1))
    draws.updated()
    noise = torch.rand(3)
    torch.rand(5)  # a loader, whose numbers nobody draws again
    draws.call_begins(model, call(1))
    mask = model(torch.ones(32))
    draws.call_begins(nn.Linear(1, 1), call(2))  # the first call counts
    with draws.again():
        assert torch.equal(torch.rand(3), noise)
        assert torch.equal(model(torch.ones(32)), mask)
        assert not torch.equal(model(torch.ones(32)), mask)


def test_states_of_the_step_before_are_forgotten():
    model, draws = nn.Dropout(0.5), Draws()
    draws.call_begins(model, call(1))
    draws.updated()
    expected = torch.rand(3)
    with draws.again():
        model(torch.ones(32))
        assert not torch.equal(torch.rand(3), expected)
    with draws.again():
        assert torch.equal(torch.rand(3), expected)


def test_a_model_that_draws_nothing_costs_no_copies():
    draws = Draws()
    draws.call_begins(nn.Linear(1, 1), call(1))
    assert not draws.wanted
    draws.call_begins(nn.LSTM(2, 2, 2, dropout=0.1), call(1))
    assert draws.wanted
