"""Trials of a sweep in one process: each has a run of its own, and a stop ends the trial alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import luff
import luff.torch
import pytest
import torch
from luff.errors import FailedPreconditionError, InvalidArgumentError
from luff.torch.patches._registry import hooks


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_HOME", str(tmp_path / "home"))


def train(rate=0.1, steps=8):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def steps_of(run):
    with luff.open_trial(run) as trial:
        return len(trial.steps("TRAIN"))


def test_each_trial_has_its_run_and_says_what_it_is(tmp_path):
    bare = train(0.1)
    runs = []
    for number, rate in enumerate((0.1, 0.2)):
        with luff.trial_run(
            f"t{number}", {"lr": rate, "net": "mlp"}, "digits", rules=False, on_finding="warn"
        ) as trial:
            assert trial.watched
            losses = train(rate)
        runs.append(trial.run)
        assert not trial.stopped
        if rate == 0.1:
            assert losses == bare
    assert runs[0] != runs[1]
    assert all("digits-t" in os.path.basename(run) for run in runs)
    assert [steps_of(run) for run in runs] == [8, 8]
    shown = subprocess.run(
        [_luff(), "runs", str(tmp_path / "home/runs"), "--json", "--where", "sweep = digits and lr > 0.15"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    cards = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(card["trial"], card["parameters"]["net"]) for card in cards] == [("t1", "mlp")]


def test_what_is_trained_afterwards_belongs_to_no_trial():
    with luff.trial_run("t0", rules=False, on_finding="warn") as trial:
        train()
    train(steps=5)
    assert hooks.default is None
    assert not hooks
    assert steps_of(trial.run) == 8


def test_settings_may_come_while_the_trial_trains():
    found = {}
    with luff.trial_run("t0", lambda: found, rules=False, on_finding="warn") as trial:
        train()
        found["chosen"] = 3
    above = os.path.dirname(trial.run)
    shown = subprocess.run([_luff(), "runs", above, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.splitlines()[0])["parameters"]["chosen"] == 3


def test_a_failing_function_of_settings_does_not_hurt():
    with luff.trial_run("t0", lambda: 1 / 0, rules=False, on_finding="warn") as trial:
        train()
    assert steps_of(trial.run) == 8


def test_a_framework_that_luff_cannot_watch_does_not_hurt(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.trainer", types.ModuleType("old"))
    monkeypatch.setitem(sys.modules, "luff.transformers", None)
    runs = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(2):
            with luff.trial_run(f"t{number}", {"many": 10**6000}, rules=False, on_finding="warn") as trial:
                train(steps=2)
            runs.append(trial.run)
    assert [str(one.message).split(",")[0] for one in told] == ["luff.transformers cannot be imported"]
    assert [steps_of(run) for run in runs] == [2, 2]


def test_a_forked_child_may_begin_a_trial_of_its_own():
    from luff import _trial_run

    with (
        luff.trial_run("parent", rules=False, on_finding="warn") as parent,
        _trial_run._lock,
    ):  # as by another thread
        child = os.fork()
        if child == 0:
            try:
                with luff.trial_run("child", rules=False, on_finding="warn") as trial:
                    os._exit(0 if trial.watched else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parent.watched


def test_a_trial_that_is_used_again_has_nothing_of_the_block_before():
    trial = luff.trial_run("again", rules=False, on_finding="warn")
    runs = []
    for _ in range(2):
        with trial:
            train()
        runs.append(trial.run)
    assert runs[0] != runs[1]


def test_an_exception_of_the_trial_passes_and_ends_the_run():
    trial = luff.trial_run("t0", rules=False, on_finding="warn")

    def failing():
        with trial:
            train()
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()
    with luff.open_trial(trial.run) as read:
        assert read.outcome == "failed"
    assert hooks.default is None


def test_a_trial_inside_a_trial_is_an_error_and_hurts_nothing():
    with luff.trial_run("outer", rules=False, on_finding="warn") as outer:
        with pytest.raises(FailedPreconditionError, match="'outer' is under way"):
            with luff.trial_run("inner", rules=False, on_finding="warn"):
                pass
        train()
    assert steps_of(outer.run) == 8


def test_a_trial_of_another_thread_is_not_mixed_in():
    inner, entered, leave = [], threading.Event(), threading.Event()

    def other():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with luff.trial_run("second", rules=False, on_finding="warn") as trial:
                entered.set()
                train(steps=20)
            inner.append((trial, [str(one.message) for one in told]))
        leave.set()

    with luff.trial_run("first", rules=False, on_finding="warn") as first:
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        assert leave.wait(60)
        train()
        thread.join()
    ((second, told),) = inner
    assert not second.watched
    assert any("'first' is under way in another thread" in text for text in told)
    assert steps_of(first.run) == 8


def test_a_trial_that_is_used_again_beside_another_one_leaves_that_alone():
    again = luff.trial_run("again", rules=False, on_finding="warn")
    with again:
        train()
    watched = []

    def other():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with again:
                watched.append(again.watched)

    with luff.trial_run("first", rules=False, on_finding="warn") as first:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        train()
    assert watched == [False]
    assert steps_of(first.run) == 8


def test_a_trial_inside_itself_is_an_error_and_the_outer_block_ends_as_ever():
    trial = luff.trial_run("twice", rules=False, on_finding="warn")
    with trial:
        with pytest.raises(FailedPreconditionError, match="'twice' is under way"):
            with trial:
                pass
        train()
    assert steps_of(trial.run) == 8
    with luff.trial_run("next", rules=False, on_finding="warn") as following:
        train()
    assert following.watched


def test_an_attached_model_is_recorded_into_the_trial(tmp_path):
    with luff.trial_run("t0", run=tmp_path / "here", rules=False, on_finding="warn") as trial:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook = luff.torch.attach(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).mean().backward()
            optimizer.step()
    assert trial.run == hook.run == str(tmp_path / "here")
    assert steps_of(trial.run) == 3


def test_a_trial_that_trains_nothing_warns():
    with (
        pytest.warns(UserWarning, match="trained nothing that Luff saw"),
        luff.trial_run("t0", rules=False, on_finding="warn") as trial,
    ):
        pass
    assert trial.run == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": 3}, "expected a text"),
        ({"name": "t", "params": 3}, "expected values by name"),
        ({"name": "t", "on_stop": "go"}, "expected 'raise' or 'return'"),
        ({"name": "t", "save_intervall": 3}, "save_interval"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(InvalidArgumentError, match=said):
        with luff.trial_run(**arguments):
            pass
    with luff.trial_run("after", rules=False, on_finding="warn") as trial:
        train()
    assert trial.watched


SWEEP = """
    import time
    import torch
    import luff

    def train(rate):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for step in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if rate > 1:
                loss = loss * float("nan")
                time.sleep(0.1)
            loss.backward()
            optimizer.step()

    for number, rate in enumerate((0.1, 5.0, 0.2)):
        with luff.trial_run(f"t{number}", {"lr": rate}, "demo", on_stop="return", rules="NonFinite") as trial:
            train(rate)
        print(number, trial.stopped, trial.rule, trial.run)
    try:
        with luff.trial_run("t3", {"lr": 5.0}, "demo", rules="NonFinite"):
            train(5.0)
    except luff.TrialStopped as stop:
        print(3, True, stop.rule, stop.run)
    print("done")
"""


def _luff():
    return os.environ.get("LUFF_EXECUTABLE") or os.path.join(os.path.dirname(sys.executable), "luff")


def _outcomes(stdout):
    rows = [line.split() for line in stdout.splitlines() if line[:1].isdigit()]
    return [(row[1], row[2] if len(row) > 3 else "") for row in rows], [row[-1] for row in rows]


@pytest.mark.parametrize("supervised", [False, True])
def test_a_stop_ends_the_trial_and_the_process_goes_on(tmp_path, supervised):
    (tmp_path / "sweep.py").write_text(textwrap.dedent(SWEEP))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_BOOTSTRAP"}
    environment |= {"HOME": str(tmp_path), "LUFF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "sweep.py"]
    if supervised:
        command = [
            _luff(), "run", "--run", "runs/job", "--rules", "NonFinite",
            "--on-finding", "stop", "--", *command,
        ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == (76 if supervised else 0), done.stderr
    assert done.stdout.endswith("done\n"), done.stderr
    outcomes, runs = _outcomes(done.stdout)
    assert outcomes == [("False", ""), ("True", "NonFinite"), ("False", ""), ("True", "NonFinite")]
    read = []
    for run in runs:
        with luff.open_trial(run) as trial:
            read.append((trial.outcome, len(trial.steps("TRAIN"))))
    assert [outcome for outcome, _ in read] == ["completed", "stopped", "completed", "stopped"]
    assert read[0][1] == read[2][1] == 60
    assert read[1][1] < 60
    assert "swallowed" not in done.stderr
    assert "SIGTERM" not in done.stderr
