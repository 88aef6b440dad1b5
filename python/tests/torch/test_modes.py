"""Bits 8 to 12 of the event `forward`, and the model that the events of a call refer to."""

from __future__ import annotations

import cases
import pytest
import torch
from luff._codes import NO_ID, EventKind
from luff.torch.loop import _mode_flags
from torch import nn
from torch.utils.data import DataLoader

TRAINING, SOME_TRAIN, SOME_EVAL, GRADIENTS, TOLD = (1 << bit for bit in range(8, 13))


def forwards(session):
    return [event for step in session.steps for event in step.events if event[0] == EventKind.FORWARD]


def numbers(session, model=0):
    return {m["path"]: m["number"] for m in session.documents["model"]["models"][model]["modules"]}


def test_training_and_evaluation(watched):
    _, session = watched()
    cases.evaluation_and_scheduler()
    flags = [argument for _, _, argument in forwards(session)]
    assert flags[:3] == [
        1 | TRAINING | SOME_TRAIN | GRADIENTS | TOLD,
        2 | SOME_EVAL | TOLD,
        2 | SOME_EVAL | GRADIENTS | TOLD,
    ]
    assert set(flags) == set(flags[:3])
    assert {subject for _, subject, _ in forwards(session)} == {
        numbers(session)[""]
    }  # from the first step on


def test_evaluation_in_training_mode(watched):
    _, session = watched()
    model = cases.net(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in cases.batches(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            model(x)
    evaluations = [argument for _, _, argument in forwards(session) if argument & 255 == 2]
    assert evaluations == [2 | TRAINING | SOME_TRAIN | TOLD] * len(evaluations)
    assert len(evaluations) == 99


def passes(session):
    """The modes of all steps with a forward pass, in turn."""
    return [step.mode for step in session.steps if any(e[0] == EventKind.FORWARD for e in step.events)]


def test_data_of_evaluations_are_known_by_their_loader_where_gradients_stay_on(watched):
    _, session = watched()
    model, loss_fn = cases.net(0.0), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train, test = (DataLoader(list(cases.batches(n))) for n in (3, 2))
    for _ in range(3):
        for x, y in train:
            optimizer.zero_grad()
            loss_fn(model(x[0]), y[0]).backward()
            optimizer.step()
        for x, y in test:
            loss_fn(model(x[0]), y[0])
    del x, y
    # Of the first time nobody knows what the loader is for; the last step is over when the run is.
    assert passes(session) == [1] * 6 + [2] * 2 + [1] * 3 + [2]
    assert [len(step.scalars) > 0 for step in session.steps if step.mode == 2] == [True] * 3


def test_a_loader_that_trains_after_all_is_no_evaluation(watched):
    _, session = watched()
    model, loss_fn = cases.net(0.0), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (DataLoader(list(cases.batches(2))) for _ in range(2))
    for turn in range(4):
        for loader in (first, second):
            for x, y in loader:
                loss = loss_fn(model(x[0]), y[0])
                if loader is first or turn > 1:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert passes(session)[-7:] == [1] * 7  # the last step is over when the run is


def of_two_loaders(long=7):
    model = cases.net(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loaders = (DataLoader(list(cases.batches(n))) for n in (long, 2))

    def step(*given):
        optimizer.zero_grad()
        sum(nn.functional.cross_entropy(model(x[0]), y[0]) for x, y in given).backward()
        optimizer.step()

    return model, step, *loaders


def test_loaders_that_go_on_side_by_side_train_both(watched):
    _, session = watched()
    _, step, long, short = of_two_loaders()
    second = iter(short)
    for first in long:
        try:
            other = next(second)
        except StopIteration:
            second = iter(short)
            other = next(second)
        step(first, other)
    assert {s.mode for s in session.steps} == {1}
    assert len(session.steps) == 7


def test_a_batch_was_looked_at_before_its_loader_trains(watched):
    _, session = watched()
    model, step, long, short = of_two_loaders()
    x, _ = next(iter(short))
    model(x[0])
    for batch in long:
        step(batch, batch)
    for batch in short:
        step(batch, batch)
    assert {s.mode for s in session.steps} == {1}
    loaders = session.documents["loaders"]["loaders"]
    assert [one["trains"] for one in loaders] == [True, True]


def test_all_calls_of_the_first_step_after_an_evaluation_train(watched):
    _, session = watched()
    model, step, long, short = of_two_loaders(long=20)
    for x, _ in short:
        model(x[0])
    endless = iter(long)
    for turn in range(12):
        batch = next(endless)
        step(batch, batch)
        if turn == 4:
            for x, y in short:
                nn.functional.cross_entropy(model(x[0]), y[0])
    assert [s.mode for s in session.steps] == [1] * 5 + [2] * 2 + [1] * 7


def test_gradients_that_wait_for_an_update_are_of_steps_of_their_own(watched):
    _, session = watched()
    model = cases.net(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first, second = (DataLoader(list(cases.batches(2))) for _ in range(2))
    for x, _ in second:
        model(x[0])
    for _ in range(4):
        optimizer.zero_grad()
        for x, y in (batch for loader in (first, second) for batch in loader):
            nn.functional.cross_entropy(model(x[0]), y[0]).backward()
        optimizer.step()
    assert [s.mode for s in session.steps] == [1] * 16


def test_parts_in_another_mode_are_noticed(watched):
    _, session = watched()
    model = cases.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(cases.batches(200)):
        if index == 30 or index == 130:
            model[1].eval()
        if index == 60:
            model[1].train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    seen = [bool(argument & SOME_EVAL) for _, _, argument in forwards(session)]
    assert seen[:30] == [False] * 30
    assert seen[30:60] == [True] * 30
    assert seen[60:131] == [False] * 71
    assert seen[130 + 16 :] == [True] * (200 - 146)  # after 64 calls, every 16th is examined
    assert all(argument & SOME_TRAIN for _, _, argument in forwards(session))  # set by the dropout


def test_events_of_a_call_name_the_model(watched):
    """Covers wrapped models, parts called from outside, and two models of one class."""
    hook, session = watched()
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    whole = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    wrapped = nn.DataParallel(whole)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, two, whole)]
    for x, _ in cases.batches(3):
        for model in (one, two, wrapped, whole[1]):
            model(x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    hook.close()
    models = {model["name"]: model["modules"] for model in session.documents["model"]["models"]}
    number = {name: modules[0]["number"] for name, modules in models.items()}
    part = next(module["number"] for module in models["Sequential"] if module["path"] == "1")
    expected = [number["Linear"], number["Linear_2"], number["Sequential"], part]
    assert [subject for _, subject, _ in forwards(session)] == expected * 3
    batches = [event for step in session.steps for event in step.events if event[0] == EventKind.BATCH]
    assert [subject for _, subject, _ in batches] == expected * 3
    updates = [
        event for step in session.steps for event in step.events if event[0] == EventKind.OPTIMIZER_STEP
    ]
    assert [subject for _, subject, _ in updates] == [0, 1, 2] * 3
    assert NO_ID not in expected


def test_what_depends_on_the_mode():
    depends = _mode_flags.depends_on_mode
    yes = [
        nn.Dropout(0.1),
        nn.AlphaDropout(0.5),
        nn.BatchNorm2d(2),
        nn.SyncBatchNorm(2),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.LSTM(2, 2, num_layers=2, dropout=0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
    ]
    no = [
        nn.Dropout(0.0),
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.InstanceNorm1d(2),
        nn.LayerNorm(2),
        nn.GRU(2, 2),
        nn.Linear(2, 2),
    ]
    assert [depends(module) for module in yes] == [True] * len(yes)
    assert [depends(module) for module in no] == [False] * len(no)


@pytest.mark.parametrize("added", [False, True])
def test_looking_is_cheap_and_modules_may_be_added(added):
    flags, model = _mode_flags.ModeFlags(), nn.Sequential(nn.Linear(2, 2))
    assert flags.bits(model) == TRAINING | GRADIENTS | TOLD
    looked = []
    original = flags._look
    flags._look = lambda watched, model: (looked.append(watched.calls), original(watched, model))
    if added:
        model.append(nn.Dropout())
    answers = [flags.bits(model) for _ in range(1000)]
    assert len(looked) < 64 + 1000 / 16 + 2
    assert (answers[-1] == TRAINING | SOME_TRAIN | GRADIENTS | TOLD) is added
