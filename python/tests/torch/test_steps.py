"""Steps, updates, modes and events that the machine derives from a training loop."""

from __future__ import annotations

import contextlib
import copy

import cases
import luff
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff import _base_hook
from luff._codes import EventKind, Mode
from luff.torch.patches import _functional
from torch import nn

FORWARD, BACKWARD, ZERO, STEP = 1, 2, 3, 4
SCHEDULER, SKIPPED, CLIP, SCALE = 5, 8, 9, 12


def test_plain_loop(watched):
    _, session = watched()
    losses, _ = cases.plain()
    assert [step.mode for step in session.steps] == [1] * 6
    assert [step.global_step for step in session.steps] == list(range(6))
    assert [step.update for step in session.steps] == list(range(6))
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session.steps] == losses
    assert session.steps[0].kinds == [ZERO, BACKWARD, STEP] or session.steps[0].kinds == [
        ZERO,
        FORWARD,
        BACKWARD,
        STEP,
    ]
    assert all(step.kinds == [ZERO, FORWARD, BACKWARD, STEP] for step in session.steps[1:])


class _OfItsOwn(torch.optim.Adam):
    """An optimizer whose step calls that of its base class, which torch has wrapped too once an Adam was made."""

    def __init__(self, parameters, fails=()):
        super().__init__(parameters, lr=0.01)
        self.fails, self.made = fails, 0

    def step(self, closure=None):
        self.made += 1
        if self.made in self.fails:
            raise RuntimeError("a step of the script's own that fails")
        return super().step(closure)


@pytest.mark.parametrize("closures", [False, True])
def test_a_step_that_calls_its_base_class_is_one_update(watched, closures):
    _, session = watched()
    torch.optim.Adam(nn.Linear(2, 2).parameters())
    model = nn.Linear(4, 3)
    optimizer = _OfItsOwn(model.parameters(), fails=(3, 4))
    for _ in range(8):

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
            loss.backward()
            return loss

        with contextlib.suppress(RuntimeError):
            if closures:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert [step.kinds.count(STEP) for step in session.train()] == (
        [1] * 6 if closures else [1, 1, 0, 0, 1, 1, 1, 1]
    )


def test_evaluation_between(watched):
    _, session = watched()
    cases.evaluation_and_scheduler()
    assert [step.mode for step in session.steps[:6]] == [1, 2, 2, 1, 2, 2]
    assert [step.mode_step for step in session.train()] == list(range(6))
    assert [step.mode_step for step in session.eval()] == list(range(11))
    assert SCHEDULER in session.train()[1].kinds
    assert "CrossEntropyLoss_output_0" in session.eval()[0].scalars
    lr = [step.scalars["optimizer/AdamW.group0.lr"] for step in session.train()]
    assert lr == [0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025]


def test_the_last_evaluation_is_published_at_the_end(watched):
    hook, session = watched()
    cases.evaluation_and_scheduler()
    hook.close()
    assert len(session.eval()) == 12


def test_a_last_step_without_its_update_is_published_at_the_end(watched):
    hook, session = watched()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        if index < 2:
            optimizer.step()
    assert len(session.train()) == 2
    hook.close()
    assert [step.global_step for step in session.train()] == [0, 1, 2]
    assert STEP not in session.train()[2].kinds


def test_accumulation_counts_micro_batches_as_steps(watched):
    _, session = watched()
    losses, _ = cases.accumulation()
    train = session.train()
    assert len(train) == 8
    assert [step.update for step in train] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in train] == losses
    with_gradients = [any(name.startswith("gradient/") for name in step.values) for step in train]
    assert with_gradients == [False, False, False, True] * 2
    assert all("Sequential_0.weight" in step.values for step in train)


def test_gan_counts_updates_of_each_optimizer(watched):
    hook, session = watched()
    losses, _ = cases.two_optimizers_gan()
    hook.close()
    train = session.train()
    assert len(train) == 12
    assert [step.update for step in train] == [n // 2 for n in range(12)]
    critic = [n for n in session.names if n.startswith("gradient/Sequential_") and "2.weight" in n]
    assert critic and all((critic[0] in step.values) == (n % 2 == 0) for n, step in enumerate(train))
    assert [step.scalars["loss_output_0"] for step in train[::2]] == losses[::2]
    assert [step.scalars["BCEWithLogitsLoss_output_0"] for step in train[1::2]] == losses[1::2]


def test_two_optimizers_after_one_backward_are_one_step(watched):
    hook, session = watched()
    cases.two_optimizers_one_backward()
    hook.close()
    assert len(session.train()) == 6
    assert session.train()[1].kinds == [ZERO, ZERO, FORWARD, BACKWARD, STEP, STEP]


def test_two_losses_are_one_step(watched):
    _, session = watched()
    losses, _ = cases.two_losses()
    assert len(session.train()) == 6
    step = session.train()[1]
    assert step.kinds == [ZERO, FORWARD, BACKWARD, BACKWARD, STEP]
    assert step.scalars["CrossEntropyLoss_output_0"] == losses[2]
    assert step.scalars["loss_output_0"] == losses[3]


def test_closure_evaluations_are_steps_of_one_update(watched):
    _, session = watched()
    losses, _ = cases.lbfgs()
    train = session.train()
    updates = [step.update for step in train]
    assert sorted(set(updates)) == [0, 1, 2]
    assert len(train) > 6
    firsts = [train[updates.index(update)] for update in (0, 1, 2)]
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in firsts] == losses
    assert all("gradient/Sequential_0.weight" in step.values for step in train)
    assert [STEP in step.kinds for step in train].count(True) == 3


def test_a_skipped_update_is_an_event(watched):
    _, session = watched()
    losses, _ = cases.grad_scaler_with_skip()
    train = session.train()
    assert [step.update for step in train] == [0, 1, 2, 2, 3, 4]
    assert SKIPPED in train[2].kinds
    assert STEP not in train[2].kinds
    assert train[0].scalars["CrossEntropyLoss_output_0"] == losses[0]
    assert SCALE in train[1].kinds


def test_a_fused_optimizer_skips_too(watched):
    _, session = watched()
    cases.grad_scaler_fused()
    assert [step.update for step in session.train()] == [0, 1, 2, 2, 3, 4]
    assert SKIPPED in session.train()[2].kinds


def test_clipping_is_an_event_before_the_update(watched):
    _, session = watched()
    cases.clipping()
    assert session.train()[1].kinds == [ZERO, FORWARD, BACKWARD, CLIP, STEP]


def test_optimizer_steps_inside_backward_are_one_step(watched):
    hook, session = watched()
    cases.optimizer_in_backward()
    hook.close()
    assert len(session.train()) == 6
    assert all(step.kinds.count(STEP) == 8 for step in session.train())
    assert [step.update for step in session.train()] == list(range(6))


def test_checkpointing_recomputes_without_a_step(watched):
    _, session = watched()
    cases.checkpointing()
    assert len(session.train()) == 6
    assert session.eval() == []


def test_training_in_eval_mode_is_training(watched):
    _, session = watched()
    losses, _ = cases.eval_mode_training()
    assert len(session.train()) == 6
    assert session.eval() == []
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session.train()] == losses


@pytest.mark.parametrize("roles", [DEFAULT_ROLES, [14]])  # 14: samples, so that no module is captured
def test_a_target_network_is_evaluated_within_a_step(watched, roles):
    hook, session = watched(roles)
    _functional.install()  # as `luff run` does
    losses, _ = cases.target_network()
    hook.close()
    assert len(session.train()) == 6
    assert len(session.eval()) == 6
    assert [step.scalars["MSELoss_output_0"] for step in session.train()] == losses
    assert not any("MSELoss_output_0" in step.scalars for step in session.eval())  # it has a gradient


def test_forward_passes_of_a_recurrent_cell_belong_to_one_step(watched):
    _, session = watched()
    cases.recurrent_cell()
    assert len(session.train()) == 6
    assert session.train()[2].kinds.count(FORWARD) == 6


def test_nothing_is_opened_by_evaluation_alone(watched, monkeypatch):
    watched()
    monkeypatch.setattr(_base_hook, "open_session", lambda *_: pytest.fail("a session was opened"))
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model(torch.zeros(1, 3))
    model(torch.zeros(1, 3))


def test_modes_by_hand(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    hook.set_mode("PREDICT")
    model(torch.zeros(1, 6))
    hook.set_mode("EVAL")
    model(torch.zeros(1, 6))
    hook.set_mode(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.mse_loss(model(torch.ones(1, 6)), torch.zeros(1, 3)).backward()
    optimizer.step()
    assert [step.mode for step in session.steps] == [3, 2, 1]
    with pytest.raises(luff.LuffError, match="TRAIN, EVAL, PREDICT, GLOBAL"):
        hook.set_mode("TEST")


@pytest.mark.parametrize("mode", ["EVAL", "PREDICT"])
@pytest.mark.parametrize("attached", [True, False])
def test_a_backward_pass_of_an_evaluation_by_hand_is_no_training(watched, mode, attached):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook, session = watched(model=model if attached else None)
    target = torch.zeros(1, 3)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(1, 6)), target).backward()
        optimizer.step()
        hook.set_mode(mode)
        x = torch.ones(1, 6, requires_grad=True)
        nn.MSELoss()(model(x), target).backward()  # for a saliency map
        assert x.grad is not None
        hook.set_mode(None)
    hook.close()
    evaluation = {"EVAL": 2, "PREDICT": 3}[mode]
    assert [step.mode for step in session.steps] == [1, evaluation, 1, evaluation]
    assert [step.kinds.count(BACKWARD) for step in session.steps] == [1, 0, 1, 0]
    for step in session.steps[1::2]:
        assert "MSELoss_output_0" in step.scalars
        assert not [name for name in step.values if name.startswith("gradient/")]


def test_the_first_step_may_be_an_evaluation_with_a_backward_pass(watched):
    hook, session = watched()
    model = nn.Linear(6, 3)
    hook.set_mode("EVAL")
    nn.MSELoss()(model(torch.ones(1, 6)), torch.zeros(1, 3)).backward()
    hook.set_mode(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    F.mse_loss(model(torch.ones(1, 6)), torch.zeros(1, 3)).backward()
    optimizer.step()
    assert [step.mode for step in session.steps] == [2, 1]
    assert session.steps[0].scalars.keys() == {"MSELoss_output_0"}


def test_an_update_is_training_whatever_the_mode_by_hand(watched):
    hook, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.set_mode("EVAL")
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(1, 6)), torch.zeros(1, 3)).backward()
        optimizer.step()
    assert [step.mode for step in session.steps] == [2, 1, 2, 1]
    assert {"gradient/Linear_weight", "Linear_weight"} <= session.steps[1].values.keys()


def test_steps_by_hand(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    hook.step("TRAIN")
    for n in range(3):
        for x, y in cases.batches(2):
            F.cross_entropy(model(x), y).backward()
        hook.save_scalar("lap", n)
        hook.step("TRAIN", update=10 * n)
    assert [step.update for step in session.train()] == [0, 10, 20]
    assert [step.scalars["scalar/lap"] for step in session.train()] == [0, 1, 2]


def test_a_stop_leaves_after_the_update(watched):
    model = nn.Linear(6, 3)
    saved = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook, session = watched(
        model=model, optimizer=optimizer, on_stop=lambda: saved.append(model.weight.clone())
    )
    session.stop_after = 3
    with pytest.raises(luff.StopTraining) as stopped:
        cases.loop(model, optimizer)
    assert stopped.value.code == 76
    assert isinstance(stopped.value, SystemExit)
    assert len(session.train()) == 3
    assert torch.equal(saved[0], model.weight)
    assert session.closed == 2
    cases.loop(model, optimizer)  # the process may continue unwatched
    assert len(session.train()) == 3


def test_a_stop_with_two_optimizers_leaves_at_the_next_forward_pass(watched):
    hook, session = watched()
    session.stop_after = 2
    with pytest.raises(luff.StopTraining):
        cases.two_optimizers_one_backward()
    assert len(session.train()) == 2
    assert session.train()[1].kinds.count(STEP) == 2


def test_two_runs_in_one_process(watched):
    one, two = nn.Linear(6, 3), nn.Linear(6, 3)
    hook_one, session_one = watched(model=one)
    hook_two, session_two = watched(model=two)
    first = cases.loop(one, torch.optim.SGD(one.parameters(), lr=0.1))
    second = cases.loop(two, torch.optim.SGD(two.parameters(), lr=0.1))
    hook_one.close()
    third = cases.loop(one, torch.optim.SGD(one.parameters(), lr=0.1))
    assert len(third) == 6
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session_one.train()] == first
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in session_two.train()] == second


def test_errors_inside_luff_are_counted(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)

    def fail(*_):
        raise OSError("disk on fire")

    session.scalar = fail
    losses = cases.loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(losses) == 6
    assert hook.health()["hook_errors"] >= 6
    assert any("disk on fire" in text for text in hook.guard.first.values())
    hook.guard.first.clear()
    session.misuse.clear()


def test_batches_are_hashed(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    x, y = next(iter(cases.batches()))
    cases.loop(model, torch.optim.SGD(model.parameters(), lr=0.1), data=[(x, y), (x, y), (x + 1, y), (x, y)])
    hashes = [[a for k, _, a in step.events if k == int(EventKind.BATCH)] for step in session.train()]
    assert hashes[0] == hashes[1] == hashes[3]
    assert hashes[1] != hashes[2]
    assert Mode.TRAIN == 1


def unused(session) -> list[dict]:
    return [event for event in session.json_events if event["kind"] == "unused_losses"]


def test_losses_that_no_backward_pass_uses_are_told(watched):
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in cases.batches(5):
            last = criterion(model(x), y)
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
    assert (
        unused(session) == [{"kind": "unused_losses", "loss": "CrossEntropyLoss", "made": 5, "used": 1}] * 3
    )


def test_losses_that_are_added_up_or_only_looked_at_are_used(watched):
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(4):
        losses = [criterion(model(x), y) for x, y in cases.batches(5)]
        optimizer.zero_grad()
        if turn == 0:
            (sum(losses) / 5).backward()
        elif turn == 1:
            torch.stack(losses).mean().backward()
        elif turn == 2:  # each by itself
            for loss in losses:
                loss.backward()
        else:  # the hardest, which is not the last
            losses[2].backward()
        optimizer.step()
    assert unused(session) == []


@pytest.mark.parametrize("count", [3, 4, 5])
def test_losses_of_which_each_has_its_backward_pass_are_used(watched, count):
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for x, y in cases.batches(count):
            criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert unused(session) == []


@pytest.mark.parametrize("again", [False, True])
def test_losses_of_inner_steps_are_used(watched, again):
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        weights = dict(model.named_parameters())
        for x, y in cases.batches(4):
            loss = criterion(torch.func.functional_call(model, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=again)
            slope_of = dict(zip(weights, slopes, strict=True))
            weights = {name: weight - 0.1 * slope_of[name] for name, weight in weights.items()}
        for x, y in cases.batches(1):
            loss = criterion(torch.func.functional_call(model, weights, (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert unused(session) == []


@pytest.mark.parametrize("retain", [False, True])
def test_losses_of_inner_steps_by_hand_on_a_copy_are_used(watched, retain):
    """First-order meta-learning: the copy's weights change in place, so that no pass was made with older ones."""
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        learner = copy.deepcopy(model)
        for x, y in cases.batches(4):
            loss = criterion(learner(x), y)
            slopes = torch.autograd.grad(loss, list(learner.parameters()), retain_graph=retain)
            with torch.no_grad():
                for weight, slope in zip(learner.parameters(), slopes, strict=True):
                    weight -= 0.1 * slope
        optimizer.zero_grad()
        for x, y in cases.batches(1):
            criterion(learner(x), y).backward()
        for weight, adapted in zip(model.parameters(), learner.parameters(), strict=True):
            weight.grad = adapted.grad
        optimizer.step()
    assert unused(session) == []


def test_at_most_32_steps_with_unused_losses_are_told(watched):
    _, session = watched()
    model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        for x, y in cases.batches(4):
            last = criterion(model(x), y)
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
    assert len(unused(session)) == 32


def by_hand(loss_of, steps=5, evaluate=None):
    """Trains without a module and without an optimizer, and returns the losses."""
    w, b = torch.zeros(6, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    losses = []
    for x, _ in cases.batches(steps):
        loss = loss_of(x @ w + b, x.sum(1, keepdim=True))
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in (w, b):
                parameter -= 0.01 * parameter.grad
                parameter.grad.zero_()
            if evaluate is not None:
                evaluate(x @ w + b, x.sum(1, keepdim=True))
    return losses


@pytest.mark.parametrize(
    ("loss_of", "name"),
    [
        (nn.MSELoss(), "MSELoss_output_0"),
        (lambda o, y: ((o - y) ** 2).mean(), "loss_output_0"),
        (lambda o, y: F.mse_loss(o, y), "MSELoss_output_0"),
    ],
)
@pytest.mark.parametrize("evaluated", [False, True])
def test_a_training_of_tensors_alone_has_a_step_for_each_backward_pass(watched, loss_of, name, evaluated):
    hook, session = watched()
    losses = by_hand(loss_of, evaluate=loss_of if evaluated else None)
    hook.close()
    assert [step.scalars for step in session.train()] == [{name: loss} for loss in losses]
    assert session.eval() == []


def test_backward_passes_that_update_nothing_are_one_step(watched):
    hook, session = watched()
    w = torch.ones(6, requires_grad=True)
    for scale in range(1, 5):
        nn.MSELoss()(scale * w, torch.zeros(6)).backward()
        w = torch.ones(6, requires_grad=True)
    hook.close()
    assert len(session.train()) == 1


@pytest.mark.parametrize("change", ["data", "copy", "count"])
def test_weights_that_are_changed_by_hand_in_any_way_end_a_step(watched, change):
    hook, session = watched()
    w = torch.ones(6, requires_grad=True)
    for _ in range(4):
        (w**2).mean().backward()
        if change == "data":
            w.data -= 0.1 * w.grad.data
        elif change == "copy":
            w.data = w.data - 0.1 * w.grad.data
        else:
            with torch.no_grad():
                w.sub_(0.1 * w.grad)
    hook.close()
    assert len(session.train()) == 4


def test_several_backward_passes_of_tensors_alone_that_an_optimizer_follows_are_one_step(watched):
    hook, session = watched()
    w = torch.zeros(6, 1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for x, _ in cases.batches(3):
        optimizer.zero_grad()
        (x @ w).mean().backward()
        (x @ w).square().mean().backward()
        optimizer.step()
    hook.close()
    assert [step.kinds for step in session.train()[1:]] == [[ZERO, BACKWARD, BACKWARD, STEP]] * 2


def test_a_training_of_tensors_alone_is_stopped_between_two_steps(watched):
    hook, session = watched()
    session.stop_after = 2
    with pytest.raises(luff.StopTraining):
        by_hand(nn.MSELoss())
    assert len(session.train()) == 3
