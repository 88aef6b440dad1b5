"""What frameworks do on top of PyTorch: closures for every update, sums over targets, steps that they end."""

from __future__ import annotations

import cases
import pytest
import torch
import torch.nn.functional as F
from luff._codes import EventKind
from luff.torch.evidence._loss_graph import counted_targets
from luff.torch.patches import _functional
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _functional_losses(monkeypatch):
    """Wraps the loss functions for one test."""
    for name in _functional._KINDS:
        monkeypatch.setattr(F, name, getattr(F, name))
    _functional.install.__wrapped__()


def told(session, kind):
    return [event for event in session.json_events if event["kind"] == kind]


def by_closures(model, optimizer, steps=6, clears=True, micro=1):
    """Updates as Lightning does: forward, clear and backward inside the optimizer's step."""
    batches = iter(list(cases.batches(steps * micro)))

    def closure():
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y) / micro
        if clears:
            optimizer.zero_grad()
        loss.backward()
        return loss

    for _ in range(steps):
        for _ in range(micro - 1):
            x, y = next(batches)
            (F.cross_entropy(model(x), y) / micro).backward()
        optimizer.step(closure)


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_a_closure_keeps(watched, clears):
    _, session = watched()
    model = nn.Linear(6, 3)
    by_closures(model, torch.optim.SGD(model.parameters(), lr=0.01), clears=clears)
    kept = [kind for step in session.train() for kind in step.kinds if kind == EventKind.GRADIENT_KEPT]
    assert len(kept) == (0 if clears else 5)


def test_an_accumulation_that_a_closure_ends(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    by_closures(model, torch.optim.SGD(model.parameters(), lr=0.01), clears=False, micro=2)
    assert [event["passes"] for event in told(session, "accumulation")] == [2] * len(
        told(session, "accumulation")
    )
    assert told(session, "accumulation")[0]["factors"] == [0.5, 0.5]


def test_a_second_evaluation_of_a_closure_tells_nothing_twice(watched):
    hook, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for x, y in cases.batches(3):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert len(session.train()) > 3
    assert not any(EventKind.GRADIENT_KEPT in step.kinds for step in session.train())
    assert len(told(session, "rounding")) <= 3
    assert hook.guard.first == {}


def test_a_sum_over_targets_that_is_divided_is_told_as_their_mean(watched):
    """As the Trainer of Transformers does: divides by the number of targets of all micro-batches."""
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    means, evaluated = [], []
    for index, (x, y) in enumerate(cases.batches(6)):
        y = y.clone()
        y[: index % 3] = -100
        loss = F.cross_entropy(model(x), y, reduction="sum") / 77.0
        means.append(F.cross_entropy(model(x).detach(), y).item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            out = model(x)
            F.cross_entropy(out, y, reduction="sum")
            evaluated.append(F.cross_entropy(out, y).item())
    losses = [step.scalars["CrossEntropyLoss_output_0"] for step in session.train()]
    assert losses == pytest.approx(means, rel=1e-5)
    evaluations = [s.scalars["CrossEntropyLoss_output_0"] for s in session.steps if s.mode == 2]
    assert evaluations == pytest.approx(evaluated[:5], rel=1e-5)


def test_a_sum_over_targets_that_is_trained_stays_one(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    sums = []
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, reduction="sum")
        sums.append(loss.item())
        loss.backward()
        optimizer.step()
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session.train()] == sums
    with torch.no_grad():
        expected = F.cross_entropy(model(x), y, reduction="sum").item()
    session_end = [step for step in session.steps if step.mode == 2]
    assert session_end == []  # the step is still open
    with torch.no_grad():
        model(x)
    assert session.steps[-1].scalars["CrossEntropyLoss_output_0"] == expected


def test_targets_that_cannot_be_counted():
    targets = torch.tensor([0, 1, -100, 2])
    assert counted_targets("CrossEntropyLoss", (None, targets), {}) == 3
    assert counted_targets("CrossEntropyLoss", (None, targets), {"ignore_index": 2}) == 3
    assert counted_targets("CrossEntropyLoss", (None,), {"target": targets}) == 3
    assert counted_targets("CrossEntropyLoss", (None, targets[::2]), {}) == 1
    assert counted_targets("CrossEntropyLoss", (None, torch.rand(4, 3)), {}) == 1
    assert counted_targets("CrossEntropyLoss", (None, targets), {"weight": torch.ones(3)}) == 1
    assert counted_targets("CrossEntropyLoss", (None, torch.full((4,), -100)), {}) == 1
    assert counted_targets("MSELoss", (None, targets), {}) == 1


def test_a_scaled_loss_is_told_without_its_divisor(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for x, y in cases.batches(4):
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.item())
        scaler.scale(loss / 4).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session.train()] == pytest.approx(losses)


def test_steps_that_a_loop_ends(watched):
    """An update leaves the step open; several calls of an evaluation are one step until the loop ends it."""
    hook, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook.machine.held = True
    for x, y in cases.batches(2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        before = len(session.steps)
        hook.save_scalar("metric", 1.0)
        assert len(session.steps) == before
        hook.machine.publish()
    assert [step.scalars["scalar/metric"] for step in session.train()] == [1.0, 1.0]
    hook.set_mode("EVAL")
    with torch.no_grad():
        model(x)
        model(x)
        hook.machine.step.ended = True
        model(x)
    hook.machine.publish()
    assert [step.mode for step in session.steps] == [1, 1, 2, 2]


@pytest.mark.parametrize("divisor", [1, 3])
def test_a_model_that_recomputes_its_parts_keeps_the_name_of_its_loss(watched, divisor):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        losses.append(loss.item())
        (loss / divisor).backward()
        del loss
        optimizer.step()
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session.train()] == pytest.approx(losses)
    assert not any("loss_output_0" in step.scalars for step in session.train())


def test_a_loss_within_saved_tensor_hooks_is_not_unpacked(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    unpacked = []
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t):
            loss = F.cross_entropy(model(x), y) / 2
        calls = []
        loss.register_hook(lambda grad, calls=calls: calls.append(len(unpacked)))
        before = len(unpacked)
        loss.backward()
        assert calls == [before]
        optimizer.step()
    assert len(session.train()) == 3
