"""Corrections that a training allows: call-backs at the agreed step, their errors, the built-in lower_lr."""

from __future__ import annotations

import cases
import luff
import pytest
import torch
from luff import corrections
from luff.corrections import Corrections
from luff.torch.loop._corrections import lower_lr
from torch import nn


@pytest.fixture(autouse=True)
def _nothing_accepted():
    yield
    corrections.accept()
    luff.stop._callbacks.clear()


def test_rates_are_lowered_after_the_agreed_update(watched):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, session = watched(model=model, optimizer=optimizer, correct=Corrections(lower_lr=True))
    assert session.accepted == ["lower_lr", "trace"]  # traces need no consent
    session.action, session.action_after = (7, "lower_lr", '{"factor": 0.5}', "because"), 2
    cases.loop(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert session.done == [(7, True)]
    assert session.action is None


def test_a_script_that_is_watched_unchanged_opts_in_at_any_time(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cases.loop(model, optimizer)
    assert session.accepted == ["trace"]
    seen = []
    corrections.accept(rollback=seen.append, skip_batch=lambda: seen.append("skip"))
    assert session.accepted == ["skip_batch", "rollback", "trace"]
    session.action, session.action_after = (8, "rollback", '{"step": 4}', ""), 0
    cases.loop(model, optimizer)
    session.action, session.action_after = (9, "skip_batch", "{}", ""), 0
    cases.loop(model, optimizer)
    assert seen == [4, "skip"]
    assert session.done == [(8, True), (9, True)]


def test_an_error_in_a_call_back_is_counted_and_told(watched):
    def fails(factor):
        raise RuntimeError("no")

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook, session = watched(model=model, optimizer=optimizer, correct=Corrections(lower_lr=fails))
    session.action, session.action_after = (7, "lower_lr", '{"factor": 0.5}', ""), 1
    assert len(cases.loop(model, optimizer)) > 1
    assert session.done == [(7, False)]
    assert hook.health()["hook_errors"] == 1
    hook.guard.first.clear()


def test_what_was_not_accepted_is_not_done(watched):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook, session = watched(model=model, optimizer=optimizer)
    session.action, session.action_after = (7, "lower_lr", '{"factor": 0.5}', ""), 1
    cases.loop(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert session.done == [(7, False)]
    hook.guard.first.clear()


def test_call_backs_before_a_stop(watched):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def fails():
        seen.append("fails")
        raise RuntimeError("disk full")

    luff.on_stop(fails)
    luff.on_stop(lambda: seen.append("second"))
    hook, session = watched(model=model, optimizer=optimizer, on_stop=lambda: seen.append("own"))
    session.stop_after = 2
    with pytest.raises(luff.StopTraining):
        cases.loop(model, optimizer)
    assert seen == ["own", "fails", "second"]
    assert hook.health()["hook_error_places"] == {"on_stop": "RuntimeError: disk full"}
    hook.guard.first.clear()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1000),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1.0),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10**6),
        lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0, 5),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o, 1.0, 5), torch.optim.lr_scheduler.ExponentialLR(o, 1.0)],
            [3],
        ),
    ],
    ids=["step", "lambda", "cosine", "constant", "sequential"],
)
def test_a_scheduler_does_not_take_the_old_rate_back(make):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    lower_lr([optimizer], [scheduler], 0.5)
    for _ in range(6):
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_rates_that_are_tensors_are_lowered_once_and_in_place():
    model = nn.Linear(2, 2)
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    lower_lr([optimizer], [scheduler], 0.5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


def test_mistakes_are_told():
    with pytest.raises(luff.LuffError, match="rollback is a str"):
        Corrections(rollback="no")
    with pytest.raises(luff.LuffError, match="expected a function"):
        luff.on_stop(3)
    with pytest.raises(LookupError):
        lower_lr([], [], 0.5)
    with pytest.raises(luff.LuffError, match="factor is 2"):
        Corrections(lower_lr=True).carry_out("lower_lr", '{"factor": 2}', lambda f: None)
