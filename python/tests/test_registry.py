"""Hooks of one process: which one is used, how long each lives, what a newer one means; threads, forks, patches."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import subprocess
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import luff
import pytest
from luff import _base_hook, _garbage, _patch, corrections, stop
from luff._base_hook import choose_run, make_config
from luff._codes import EndReason, Mode, Role
from luff._registry import Registry
from luff._step_hook import StepHook
from luff._turn import IDLE
from luff._weak import Identities

TRAIN, EVAL = int(Mode.TRAIN), int(Mode.EVAL)


class Model:
    """Something to attach a hook to."""


def record(hook):
    hook.steps.begin(TRAIN)
    hook.steps.scalar("loss", 1.0, int(Role.LOSS))
    hook.steps.end()


@pytest.fixture
def hooks():
    registry = Registry(lambda options: StepHook(options))
    yield registry
    for hook in registry.living:
        hook.close()


@pytest.fixture
def attach(hooks, tmp_path):
    def make(name, *things, default=False, **callbacks):
        hook = StepHook(choose_run(tmp_path / name, False, make_config(None, {})), **callbacks)
        hook.open_now()
        return hooks.add(hook, things, default=default)

    return make


def told(path):
    with luff.open_trial(str(path)) as trial:
        return len(trial.steps("TRAIN")), trial.outcome, trial.outcome_reason


def test_a_hook_lives_as_long_as_what_it_was_attached_to(hooks, attach, tmp_path):
    model = Model()
    record(attach("run", model))
    assert len(hooks.living) == 1
    reference = hooks.living[0].reference
    assert reference() is hooks.of(model)
    del model
    assert reference() is None
    assert not hooks
    assert told(tmp_path / "run") == (1, "completed", "")


def test_a_hook_that_somebody_holds_lives_without_its_model(hooks, attach, tmp_path):
    model = Model()
    hook = attach("run", model)
    del model
    record(hook)
    assert hooks.current() is hook
    del hook
    assert told(tmp_path / "run") == (1, "completed", "")


def test_a_newer_hook_takes_the_place_of_an_older_one(hooks, attach, tmp_path):
    model, other = Model(), Model()
    first, beside = attach("first", model), attach("beside", other)
    record(first)
    second = attach("second", model)
    record(second)
    assert (first.live, second.live, beside.live) == (False, True, True)
    assert hooks.current() is second
    second.close()
    assert told(tmp_path / "first") == (
        1, "completed", f"worker 0: a newer hook took its place, and records into {tmp_path / 'second'}"
    )  # fmt: skip
    assert told(tmp_path / "second") == (1, "completed", "")


def test_show_tells_why_a_run_ended(attach, tmp_path):
    model = Model()
    attach("first", model)
    attach("second", model)
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff")
    done = subprocess.run(
        [executable, "show", str(tmp_path / "first")], capture_output=True, text=True, check=True
    )
    assert "a newer hook took its place" in done.stdout


def test_the_hook_that_watches_all_gives_way_to_another_of_its_kind(hooks, attach):
    model = Model()
    whole = attach("whole", default=True)
    one = attach("one", model)
    assert [hooks.current(), hooks.default, whole.live] == [one, whole, True]
    newer = attach("newer", default=True)
    assert [whole.live, hooks.default, hooks.living] == [False, newer, [one, newer]]


def test_the_hook_at_work_in_a_thread_gets_what_it_saves(hooks, attach):
    first, second = attach("first"), attach("second")
    hooks.enter(first)
    found = []
    thread = threading.Thread(target=lambda: found.append(hooks.current()))
    thread.start()
    thread.join()
    assert [hooks.current(), *found] == [first, second]


def test_a_hook_that_gives_up_ends_its_run(hooks, attach, tmp_path, monkeypatch):
    monkeypatch.setattr(_base_hook, "MAX_ERRORS", 3)
    hook = attach("run")
    record(hook)
    for _ in range(5):
        hook.told("here", lambda: 1 / 0)
    assert not hooks
    steps, outcome, why = told(tmp_path / "run")
    assert (steps, outcome) == (1, "failed")
    assert "3 errors inside Luff, the last in here: ZeroDivisionError" in why


def test_another_threads_calls_are_no_part_of_a_step(attach, tmp_path):
    hook = attach("run")
    answers = []

    def other():
        answers.append(hook.told("begin", hook.steps.begin, TRAIN))

    hook.told("begin", hook.steps.begin, TRAIN)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert answers == [None]
    hook.told("end", hook.steps.end)

    def after_long():  # the thread that had the turn makes no calls
        for _ in range(IDLE + 1):
            hook.told("nothing", lambda: None)
        hook.told("begin", hook.steps.begin, TRAIN)
        hook.told("end", hook.steps.end)

    thread = threading.Thread(target=after_long)
    thread.start()
    thread.join()
    hook.close()
    assert told(tmp_path / "run")[0] == 2
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert {gap["reason"] for gap in trial.gaps()} == {"not seen"}


def test_a_thread_that_trains_keeps_its_turn_however_often_others_call(attach, tmp_path):
    hook = attach("run")

    def step(mode):
        hook.told("begin", hook.steps.begin, mode)
        hook.told("end", hook.steps.end)

    rounds = 2 * IDLE
    with ThreadPoolExecutor(1) as other:
        for _ in range(rounds):
            step(TRAIN)
            other.submit(step, EVAL).result()
    hook.close()
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert (len(trial.steps("TRAIN")), len(trial.steps("EVAL"))) == (rounds, 0)


def test_a_thread_that_ended_within_a_step_leaves_nothing_to_the_next(attach, tmp_path):
    hook = attach("run")
    thread = threading.Thread(target=lambda: hook.told("begin", hook.steps.begin, TRAIN))
    thread.start()
    thread.join()
    hook.told("step", record, hook)
    hook.close()
    assert told(tmp_path / "run")[0] == 1


def test_a_forked_child_ends_without_a_word_in_the_parents_run(attach, tmp_path):
    model = Model()
    hook = attach("run", model)
    record(hook)
    child = os.fork()
    if child == 0:
        del hook, model
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert told(tmp_path / "run")[1] == "running"
    record(hook)
    hook.close()
    assert told(tmp_path / "run") == (2, "completed", "")


SCRIPT = """
import sys
from luff._base_hook import choose_run, make_config
from luff._codes import Mode
from luff._step_hook import StepHook

kept = []
for number in range(3):
    hook = StepHook(choose_run(f"{sys.argv[1]}/{number}", False, make_config(None, {})))
    hook.open_now()
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.end()
    kept.append(hook)
"""


def test_the_end_of_the_interpreter_ends_all_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert [told(tmp_path / str(number)) for number in range(3)] == [(1, "completed", "")] * 3


def test_hooks_that_hang_share_the_time_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stop.time, "monotonic", lambda: now[0])

    class Hanging:
        def close(self, reason, timeout_s):
            now[0] += timeout_s

    hanging = [Hanging() for _ in range(10)]
    monkeypatch.setattr(stop, "_watched", weakref.WeakSet(hanging))
    stop._close_all(EndReason.COMPLETED)
    assert now[0] < 100 + 2.6


def test_many_hooks_leave_nothing_behind(attach, tmp_path):
    def resources():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(_base_hook._living)

    def one(number):
        model = Model()
        record(attach(str(number), model))

    one("first")
    before = resources()
    for number in range(20):
        one(number)
    assert resources() == before


# Call-backs that refer to what their hook was attached to
# ------------------------------------------------------------


class Part:
    """A part of a model."""


class Trainer:
    """Refers to a model that refers back to it, as trainers of frameworks do."""

    def __init__(self, model):
        self.model = model
        model.trainer = self

    def save(self):
        return self.model


def closure(model):
    return {"on_stop": lambda: model}


def closure_over_a_part(model):
    part = model.part
    return {"on_stop": lambda: part}


def method_of_its_trainer(model):
    return {"on_stop": Trainer(model).save}


def partial(model):
    return {"on_stop": functools.partial(print, model)}


def correction(model):
    def lower(factor, model=model):
        return model

    return {"correct": corrections.Corrections(lower_lr=lower)}


WAYS = [closure, closure_over_a_part, method_of_its_trainer, partial, correction]


def attached(attach, name, way):
    """Trains in a function that has returned: only hook and model still refer to each other."""
    model = Model()
    model.part = Part()
    hook = attach(name, model, model.part, **way(model))
    record(hook)
    return weakref.ref(hook), weakref.ref(model)


@pytest.mark.parametrize("way", WAYS)
def test_the_next_hook_ends_one_that_its_own_call_backs_keep(hooks, attach, tmp_path, way):
    references = [attached(attach, str(number), way) for number in range(3)]
    last = attach("last")
    gc.collect()  # collects the cycle of a trainer and its model
    assert [[one() for one in pair] for pair in references] == [[None, None]] * 3
    assert hooks.living == [last]
    assert [told(tmp_path / str(number)) for number in range(3)] == [(1, "completed", "")] * 3


@pytest.mark.parametrize("way", WAYS)
def test_close_lets_go_of_what_call_backs_keep(attach, way):
    hook, model = attached(attach, "run", way)
    hook().close()
    gc.collect()
    assert [hook(), model()] == [None, None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["hook", "model", "part", "trainer", "call-back", "frame"])
def test_what_somebody_holds_stays_with_its_call_backs(hooks, attach, way, what):
    def suspended(model):
        yield 1
        print(model)

    model = Model()
    model.part = Part()
    callbacks = way(model)
    hook = attach("run", model, model.part, **callbacks)
    held = {
        "hook": hook,
        "model": model,
        "part": [model.part],
        "trainer": Trainer(model),
        "call-back": callbacks,
        "frame": suspended(model),
    }[what]
    if what == "frame":
        next(held)
    references = [hook.reference, weakref.ref(model.part)]
    del model, hook, callbacks
    attach("next")
    assert all(reference() is not None for reference in references)
    assert references[0]().live
    assert held is not None


def test_what_is_too_large_to_look_at_stays_until_it_is_closed(attach, monkeypatch):
    monkeypatch.setattr(_garbage, "MOST", 10)
    hook, model = attached(attach, "run", closure)
    attach("next")
    assert model() is not None
    hook().close()
    assert model() is None


# Identities --------------------------------------------------------------------------------------------------------


def test_an_identity_goes_with_its_thing():
    values = Identities()
    for number in range(100):
        thing = Model()
        assert values.get(thing) is None  # even if it lies at the address of the previous one
        values[thing] = number
        assert (values.get(thing), len(values)) == (number, 1)
        reference = weakref.ref(thing)
        del thing
        assert reference() is None
    assert len(values) == 0


# Patches -----------------------------------------------------------------------------------------------------------


def noting(name, seen):
    def make(original):
        def wrapper(*args):
            seen.append(name)
            return original(*args)

        return wrapper

    return make


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_patches_of_others_stay(monkeypatch, before, after, inherited):
    monkeypatch.setattr(_patch, "_inner", [])
    seen = []

    class Base:
        def call(self, x):
            seen.append("own")
            return x + 1

    class Owner(Base):
        pass

    def patch(name):
        Owner.call = noting(name, seen)(Owner.call)

    if not inherited:
        Owner.call = Base.call
    if before:
        patch("before")
    _patch.wrap(Owner, "call", noting("luff", seen), inner=True)
    if after:
        patch("after")

    def call():
        seen.clear()
        assert Owner().call(1) == 2
        return list(seen)

    inside = [*["before"] * before, "own"]
    assert call() == [*["after"] * after, "luff", *inside]
    with _patch.unwrapped():
        assert call() == ([*["after"] * after, "luff", *inside] if after else inside)
        patch("within")
        assert call()[0] == "within"
    kept = call()  # wrappers installed while ours was removed are called, and so is ours
    assert "within" in kept
    assert "luff" in kept
    assert kept[-1] == "own"
    assert kept.count("luff") == 1


def test_what_is_installed_is_installed_once():
    count = []
    barrier = threading.Barrier(4)

    @_patch.once
    def install(what):
        count.append(what)

    def ask():
        barrier.wait()
        for what in ("one", "other", "one"):
            install(what)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(count) == ["one", "other"]


def test_a_function_that_several_modules_have_is_one():
    def function():
        return 1

    def other():
        return 2

    first, second, foreign = (types.SimpleNamespace(call=call) for call in (function, function, other))
    _patch.wrap(first, "call", noting("luff", []), also=(second, foreign, None))
    assert first.call is second.call
    assert first.call is not function
    assert foreign.call is other
