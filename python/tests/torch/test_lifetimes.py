"""Which run a step belongs to, and how long a hook lives: many trainings in one process, repeated cells, threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import luff
import luff.torch
import pytest
import torch
from luff import _base_hook
from luff.torch.patches import _registry
from torch import nn

ALL = {"collections": {"gradients": {"forms": ["raw"]}}, "save_interval": 1}


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(torch.relu(self.inner(x)))


def make(width=4):
    model = Net(width)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def train(model, optimizer, steps, pause=None):
    width = model.inner.in_features
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(3, width)).pow(2).sum()
        if pause:
            pause()
        loss.backward()
        if pause:
            pause()
        optimizer.step()


def steps_of(path):
    with luff.open_trial(str(path)) as trial:
        return len(trial.steps("TRAIN"))


def outcome(path):
    with luff.open_trial(str(path)) as trial:
        return {"state": trial.outcome, "why": trial.outcome_reason}


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    for hook in _registry.hooks.living:
        hook.close()


def test_many_trainings_of_a_process_have_their_own_steps(tmp_path):
    for number in range(8):
        model, optimizer = make()
        luff.torch.attach(model, optimizer, run=tmp_path / str(number))
        train(model, optimizer, 10)
    del model, optimizer
    gc.collect()
    assert not _registry.hooks.living
    assert [steps_of(tmp_path / str(n)) for n in range(8)] == [10] * 8
    assert {outcome(tmp_path / str(n))["state"] for n in range(8)} == {"completed"}


def test_hooks_that_are_kept_do_not_take_what_is_new(tmp_path):
    kept = []
    for number in range(4):
        model, optimizer = make()
        kept.append(luff.torch.attach(model, optimizer, run=tmp_path / str(number)))
        train(model, optimizer, 3)
        luff.torch.save_scalar("of", number)
    for hook in kept:
        hook.close()
    assert [steps_of(tmp_path / str(n)) for n in range(4)] == [3] * 4
    for number in range(4):
        with luff.open_trial(str(tmp_path / str(number))) as trial:
            assert "scalar/of" in trial.tensors()


def test_a_cell_that_is_run_twice_ends_the_first_run_and_says_so(tmp_path):
    model, optimizer = make()
    for name in ("first", "second"):
        hook = luff.torch.attach(model, optimizer, run=tmp_path / name)
        train(model, optimizer, 5)
    assert outcome(tmp_path / "first")["state"] == "completed"
    assert str(tmp_path / "second") in outcome(tmp_path / "first")["why"]
    hook.close()
    assert (steps_of(tmp_path / "first"), steps_of(tmp_path / "second")) == (5, 5)


def test_a_cell_that_makes_its_model_anew(tmp_path):
    for name in ("first", "second"):
        model, optimizer = make()
        hook = luff.torch.attach(model, optimizer, run=tmp_path / name)
        train(model, optimizer, 5)
    hook.close()
    assert (steps_of(tmp_path / "first"), steps_of(tmp_path / "second")) == (5, 5)
    assert outcome(tmp_path / "first")["state"] == "completed"


@pytest.mark.parametrize("steps", range(1, 6))
def test_what_is_let_go_ends_at_once(tmp_path, steps):
    model, optimizer = make()
    luff.torch.attach(model, optimizer, run=tmp_path / "run", **ALL)
    train(model, optimizer, steps)
    model(torch.ones(3, 4))
    gc.disable()  # there is no reference cycle
    try:
        del model, optimizer
        assert not _registry.hooks.living
    finally:
        gc.enable()
    assert (steps_of(tmp_path / "run"), outcome(tmp_path / "run")["state"]) == (steps, "completed")


def test_nothing_keeps_a_model_or_a_hook_alive(tmp_path):
    model, optimizer = make()
    hook = luff.torch.attach(model, optimizer, run=tmp_path / "run")
    train(model, optimizer, 2)
    references = [weakref.ref(hook), weakref.ref(model), weakref.ref(model.inner.weight)]
    del hook
    train(model, optimizer, 2)  # the model holds the hook
    del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert (steps_of(tmp_path / "run"), outcome(tmp_path / "run")["state"]) == (4, "completed")


def test_a_search_whose_call_backs_hold_the_model_keeps_one(tmp_path):
    def objective(number):
        model, optimizer = make()
        luff.torch.attach(
            model,
            optimizer,
            run=tmp_path / str(number),
            on_stop=lambda: model.state_dict(),
            correct=luff.corrections.Corrections(rollback=lambda _: optimizer),
        )
        train(model, optimizer, 3)
        return weakref.ref(model)

    models = [objective(number) for number in range(4)]
    gc.collect()
    assert [model() is None for model in models] == [True, True, True, False]
    _registry.hooks.current().close()
    assert models[-1]() is None
    assert [steps_of(tmp_path / str(number)) for number in range(4)] == [3] * 4
    assert {outcome(tmp_path / str(number))["state"] for number in range(4)} == {"completed"}


def test_a_hook_that_gives_up_ends_its_run_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(_base_hook, "MAX_ERRORS", 5)
    model, optimizer = make()
    hook = luff.torch.attach(model, optimizer, run=tmp_path / "run")
    train(model, optimizer, 2)
    monkeypatch.setattr(hook.machine, "backward_begins", lambda *_: 1 / 0)
    train(model, optimizer, 10)
    assert not hook.live
    found = outcome(tmp_path / "run")
    assert found["state"] == "failed"
    assert "errors inside Luff" in found["why"]
    assert "division by zero" in found["why"]


class Turns:
    """Makes two threads alternate, one step at a time."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=60)

    def __call__(self):
        self.barrier.wait()


def in_threads(*functions):
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def widths_of(path):
    """Returns, for each step, the widths of the models whose gradients it contains."""
    with luff.open_trial(str(path)) as trial:
        names = trial.tensors("^gradient/.*inner.weight")
        return [
            {
                trial.tensor(name).value(step, mode="TRAIN").shape[0]
                for name in names
                if step in trial.tensor(name).steps("TRAIN")
            }
            for step in trial.steps("TRAIN")
        ]


def test_two_threads_with_a_hook_each_do_not_mix(tmp_path):
    pairs = {4: make(4), 6: make(6)}
    hooks = [luff.torch.attach(*pairs[n], run=tmp_path / str(n), **ALL) for n in pairs]
    pause = Turns()
    in_threads(*[lambda n=n: train(*pairs[n], 20, pause) for n in pairs])
    for hook in hooks:
        hook.close()
    for n in pairs:
        assert widths_of(tmp_path / str(n)) == [{n}] * 20
        with luff.open_trial(str(tmp_path / str(n))) as trial:
            assert trial.gaps() == []


def test_two_threads_of_one_hook_one_is_recorded_and_the_other_is_a_gap(tmp_path):
    config = _base_hook.make_config(ALL["collections"], {"save_interval": 1})
    hook = luff.torch.Hook(_base_hook.choose_run(tmp_path / "run", False, config))
    _registry.hooks.add(hook, default=True)
    _registry._install()
    pairs = [make(4), make(6)]
    pause = Turns()

    def both(pair):
        train(*pair, 20, pause)
        pause()  # when one thread has ended, the steps of the other one are recorded

    in_threads(*[lambda pair=pair: both(pair) for pair in pairs])
    hook.close()
    found = widths_of(tmp_path / "run")
    assert found in ([{4}] * len(found), [{6}] * len(found))
    assert len(found) in (19, 20)  # the first step may be lost until the training thread is known
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert "not seen" in {gap["reason"] for gap in trial.gaps()}


def test_one_thread_after_another_is_recorded(tmp_path):
    hook = luff.torch.Hook(_base_hook.choose_run(tmp_path / "run", False, {}))
    _registry.hooks.add(hook, default=True)
    _registry._install()
    first = make()
    for _ in range(3):  # each thread ends before the next begins
        in_threads(lambda: train(*make(), 4))
    train(*first, 4)
    hook.close()
    assert steps_of(tmp_path / "run") == 16


class Branches(nn.Module):
    """A model whose parts run in threads of their own, like DataParallel's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x):
        found = {}
        in_threads(
            lambda: found.update(inner=self.inner(x)),
            lambda: found.update(other=self.other(x)),
        )
        return found["inner"] + found["other"]


def test_threads_of_a_forward_pass_are_a_part_of_it(tmp_path):
    hook = luff.torch.Hook(_base_hook.choose_run(tmp_path / "run", False, {}))
    _registry.hooks.add(hook, default=True)
    _registry._install()
    model = Branches()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 6)
    hook.close()
    assert steps_of(tmp_path / "run") == 6


def test_a_thread_for_each_epoch_with_functional_calls(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = luff.torch.attach(model, optimizer=optimizer, run=tmp_path / "run")

    def epoch():
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.linear(torch.ones(2, 4), model.weight, model.bias).pow(2).sum().backward()
            optimizer.step()

    for _ in range(3):
        in_threads(epoch)
    hook.close()
    assert steps_of(tmp_path / "run") == 15


def test_models_that_share_a_part_have_a_hook_each(tmp_path):
    shared = nn.Linear(4, 4)
    models = [nn.Sequential(shared, nn.Linear(4, 1)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
    hooks = [
        luff.torch.attach(model, optimizer=optimizer, run=tmp_path / str(number))
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))
    ]
    for _ in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).pow(2).sum().backward()
            optimizer.step()
    for hook in hooks:
        hook.close()
    assert [steps_of(tmp_path / str(number)) for number in range(2)] == [5, 5]


def test_a_child_of_a_fork_leaves_the_parents_run_alone(tmp_path):
    model, optimizer = make()
    hook = luff.torch.attach(model, optimizer, run=tmp_path / "run")
    train(model, optimizer, 3)
    child = os.fork()
    if child == 0:
        try:
            gc.collect()
            hook.save_scalar("of the child", 1.0)
            del hook, model, optimizer
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert outcome(tmp_path / "run")["state"] == "running"
    train(model, optimizer, 3)
    hook.close()
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert [worker["worker"] for worker in trial.workers()] == [0]
        assert len(trial.steps("TRAIN")) == 6
        assert "scalar/of the child" not in trial.tensors()


FOREIGN = """
import functools, sys
import torch
from torch import nn
import torch.nn.utils.clip_grad

seen = {}

def patch(owner, name, who):
    original = getattr(owner, name)

    @functools.wraps(original)
    def foreign(*args, **kwargs):
        seen[who, name] = seen.get((who, name), 0) + 1
        return original(*args, **kwargs)

    setattr(owner, name, foreign)
    return owner, name, original, foreign

PLACES = [
    (nn.Module, "__call__"), (nn.Module, "zero_grad"), (nn.Module, "load_state_dict"),
    (torch.optim.Optimizer, "__init__"), (torch.optim.Optimizer, "zero_grad"), (torch.optim.SGD, "step"),
    (torch.autograd, "backward"), (torch.optim.lr_scheduler.StepLR, "step"),
    (torch.nn.utils.clip_grad, "clip_grad_norm_"), (torch.nn.functional, "mse_loss"),
]
for place in PLACES:
    patch(*place, "before")
import luff.torch
from luff.torch.patches import _functional
_functional.install()
model = nn.Linear(3, 1)
hook = luff.torch.attach(model, run=sys.argv[1])
after = [patch(*place, "after") for place in PLACES]

def train():
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        model.zero_grad()
        torch.nn.functional.mse_loss(model(torch.ones(2, 3)), torch.zeros(2, 1)).backward()
        torch.nn.utils.clip_grad.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.load_state_dict(model.state_dict())

train()
for who in ("before", "after"):
    assert {name for _, name in PLACES} == {name for other, name in seen if other == who}, seen
for owner, name, original, foreign in after:  # as they take themselves away
    if owner is not torch.optim.SGD:  # torch patches this one itself
        assert getattr(owner, name) is foreign
        setattr(owner, name, original)
train()
hook.close()
train()
assert hook.health()["hook_errors"] == 0, hook.health()
"""


def test_patches_of_others_stay_wherever_luff_has_its_own(tmp_path):
    subprocess.run([sys.executable, "-c", FOREIGN, str(tmp_path / "run")], check=True)
    assert steps_of(tmp_path / "run") == 6


def resources():
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return memory, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [False, True])
def test_a_hundred_trainings_take_no_more_than_ten(tmp_path, kept):
    """With `kept` the model stays, and each training attaches a new hook to it."""
    model, optimizer = make(64)

    def one(number):
        nonlocal model, optimizer
        if not kept:
            model, optimizer = make(64)
        luff.torch.attach(model, optimizer, run=tmp_path / str(number), save_all=True)
        train(model, optimizer, 5)

    for number in range(20):
        one(number)
    memory, descriptors, threads = resources()
    for number in range(20, 120):
        one(number)
    grown, *others = resources()
    print(f"100 trainings: {(grown - memory) / 100:.1f} KiB each, descriptors and threads {others}")
    assert others == [descriptors, threads]
    assert grown - memory < 100 * 64  # KiB
    model = optimizer = None
    assert [steps_of(tmp_path / str(number)) for number in (0, 57, 118)] == [5] * 3
