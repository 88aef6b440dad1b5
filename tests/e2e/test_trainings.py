"""Jobs that start several trainings: each has a run of its own, rules, a verdict, and an end of its own."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import luff as luff_package
import pytest

from tests.report import Report, skip_without_page

from .conftest import Luff, processes_with

SCRIPTS = Path(__file__).parent / "scripts"


def _training(*arguments: str) -> str:
    return shlex.join([sys.executable, str(SCRIPTS / "steps.py"), *arguments])


def _job(luff: Luff, command: str, *options: str, timeout_s: float = 120) -> tuple[int, str]:
    run = str(luff.tmp / "run")
    code, _, err = luff("run", "--run", run, *options, "--", "sh", "-c", command, timeout_s=timeout_s)
    return code, err


def _steps(luff: Luff, number: int) -> int:
    """Returns the number of TRAIN steps of the job's n-th training, which must have come from one worker."""
    with luff_package.open_trial(luff.tmp / ("run" if number == 1 else f"run-{number}")) as trial:
        assert len(trial.workers()) == 1
        return len(trial.steps("TRAIN"))


def test_a_sweep_one_after_the_other(luff: Luff) -> None:
    code, err = _job(luff, "; ".join(_training("--steps", steps) for steps in ("20", "30", "40")))
    assert code == 0, err
    assert [_steps(luff, number) for number in (1, 2, 3)] == [20, 30, 40]
    verdicts = re.findall(r"^luff: ok: (\d+) steps, .* no findings — run: (.*)$", err, re.MULTILINE)
    run = str(luff.tmp / "run")
    assert verdicts == [("20", run), ("30", f"{run}-2"), ("40", f"{run}-3")]
    assert err.splitlines()[-1] == "luff: 3 trainings: 3 ok"
    for number in ("", "-2", "-3"):
        assert luff.assert_check_gives_what_was_seen(Path(run + number)) == []
        with luff_package.open_trial(run + number) as trial:
            assert trial.outcome == "completed"
    assert processes_with(run) == []


def test_of_a_long_sweep_only_the_first_trainings_are_announced(luff: Luff) -> None:
    code, err = _job(luff, "; ".join([_training("--steps", "5")] * 6))
    assert code == 0, err
    run = str(luff.tmp / "run")
    told = re.findall(r"^luff: training (\d) of the job has a run of its own: (.*)$", err, re.MULTILINE)
    later = " (later ones are not announced)"
    assert told == [("2", f"{run}-2"), ("3", f"{run}-3"), ("4", f"{run}-4{later}")], err
    assert re.findall(r" — run: (.*)$", err, re.MULTILINE) == [run, *(f"{run}-{n}" for n in range(2, 7))]
    assert err.splitlines()[-1] == "luff: 6 trainings: 6 ok"


def test_a_sweep_at_once_and_a_fault_in_one_of_them(luff: Luff) -> None:
    trainings = [
        _training("--steps", "200", "--sleep", "0.005", *more) for more in ((), ("--nan-at", "40"), ())
    ]
    code, err = _job(luff, " & ".join([*trainings, "wait"]))
    assert code == 0, err
    assert [_steps(luff, number) for number in (1, 2, 3)] == [200, 200, 200]
    found = [luff.assert_check_gives_what_was_seen(luff.tmp / name) for name in ("run", "run-2", "run-3")]
    assert sorted(bool(findings) for findings in found) == [False, False, True]
    assert {finding["rule"] for findings in found for finding in findings} >= {"NonFinite"}
    assert "ReplicaDivergence" not in err
    assert err.splitlines()[-1] == "luff: 3 trainings: 2 ok, 1 not ok"


def test_a_stop_ends_the_training_that_it_is_about(luff: Luff) -> None:
    long = _training("--steps", "2000", "--sleep", "0.01", "--nan-at", "20")
    code, err = _job(
        luff, f"{_training('--steps', '30')}; {long}; {_training('--steps', '50')}", "--on-finding", "stop"
    )
    assert code == 76, err
    assert (_steps(luff, 1), _steps(luff, 3)) == (30, 50)
    assert _steps(luff, 2) < 2000
    assert err.splitlines()[-1] == "luff: 3 trainings: 2 ok, 1 stopped"


def test_a_stop_is_enforced_and_leaves_trainings_beside_it_alone(luff: Luff) -> None:
    stubborn = _training("--steps", "3000", "--sleep", "0.01", "--nan-at", "20", "--swallow", "--stubborn")
    config = luff.tmp / "luff.toml"
    config.write_text("[stop]\nleave_s = 4\nkill_s = 0.5\n")  # when the run has long ended
    command = f"{_training('--steps', '700', '--sleep', '0.01')} & {stubborn} & wait"
    run = ("--run", str(luff.tmp / "run"), "--on-finding", "stop", "--config", str(config))
    code, out, err = luff("run", *run, "--", "sh", "-c", command)
    assert code == 76, err
    assert "and was killed" in err
    assert out.count("done ") == 1  # of the other one
    assert 700 in (_steps(luff, 1), _steps(luff, 2))
    assert "1 ok, 1 stopped" in err.splitlines()[-1], err


def test_a_training_that_fails_and_one_that_is_killed(luff: Luff) -> None:
    killed = "timeout -s KILL 3 " + _training("--steps", "5000", "--sleep", "0.01")
    code, err = _job(luff, "; ".join([_training("--fail-at", "10"), _training("--steps", "20"), killed]))
    assert code == 137, err
    assert "luff: worker 0 ended by an exception after 11 steps" in err
    assert "luff: ok: 20 steps" in err
    assert "luff: worker 0 ended without a word" in err
    assert err.splitlines()[-1] == "luff: 3 trainings: 1 ok, 2 failed; sh failed with exit code 137"


def test_a_training_that_cannot_be_watched_is_told_at_the_end(luff: Luff) -> None:
    full = f"echo {{}} > {luff.tmp}/run/trainings/9999.json"
    code, err = _job(luff, "; ".join([*[_training("--steps", "20")] * 2, full, _training("--steps", "20")]))
    assert code == 0, err
    assert "was not watched" in err
    assert "the job has begun 9999 trainings" in err
    assert err.splitlines()[-1] == "luff: 2 trainings: 2 ok"


def test_folds_by_subprocesses_and_by_forks(luff: Luff) -> None:
    script = luff.tmp / "folds.py"
    script.write_text(
        f"""
import os, subprocess, sys
for fold in (15, 25):
    subprocess.run([sys.executable, {str(SCRIPTS / "steps.py")!r}, "--steps", str(fold)], check=True)
import numpy as np
from luff._base_hook import choose_run, make_config
from luff.numpy import Hook
for fold in (35, 45):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    weights = {{"w": np.zeros(3, np.float32)}}
    hook = Hook(choose_run(None, False, make_config(None, {{}})), weights, {{"lr": 0.1}})
    for index in range(fold):
        with hook.step() as step:
            step.loss(1.0 / (1 + index))
    hook.close()
    os._exit(0)
"""
    )
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--", sys.executable, str(script))
    assert code == 0, err
    assert [_steps(luff, number) for number in (1, 2, 3, 4)] == [15, 25, 35, 45]
    assert "4 trainings:" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("folds", "runs"), [(3, 3), (40, 1)], ids=["long folds", "inner loops, as in meta-learning"]
)
def test_folds_in_one_process(luff: Luff, folds: int, runs: int) -> None:
    script = luff.tmp / "folds.py"
    script.write_text(
        f"""
import torch
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x @ torch.randn(8, 1)
kept = []
for fold in range({folds}):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range({360 // folds}):
        optimizer.zero_grad()
        rows = torch.randperm(64)[:32]
        torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        print(float((model(x[64:]) - y[64:]).square().mean()))
    kept.append(model)
"""
    )
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--", sys.executable, str(script))
    assert code == 0, err
    assert [_steps(luff, number) for number in range(1, runs + 1)] == [360 // runs] * runs
    assert len(list(luff.tmp.glob("run*"))) == runs
    assert err.splitlines()[-1].startswith(
        "luff: 3 trainings: 3 ok" if runs == 3 else "luff: ok: 360 steps"
    ), err


def test_weights_loaded_after_a_training_belong_to_the_next_one(luff: Luff) -> None:
    script = luff.tmp / "load.py"
    script.write_text(
        """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(256, 8)
y = x @ torch.randn(8, 1)
def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
def train(model, parameters):
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for step in range(120):
        optimizer.zero_grad()
        rows = torch.randperm(256)[:32]
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
first = net()
train(first, first.parameters())
second = net()
second.load_state_dict({"module." + name: value for name, value in first.state_dict().items()}, strict=False)
for parameter in second[0].parameters():
    parameter.requires_grad_(False)
train(second, second[2].parameters())
"""
    )
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--", sys.executable, str(script))
    assert code == 0, err
    findings = luff.assert_check_gives_what_was_seen(luff.tmp / "run-2")
    assert "FrozenAtInit" in {finding["rule"] for finding in findings}, err


def test_a_resumed_sweep_goes_on_with_each_of_its_runs(luff: Luff) -> None:
    def part(until: int, *options: str) -> str:
        saved = [luff.tmp / name for name in ("a.npz", "b.npz")]
        one, two = (_training("--checkpoint", str(path), "--steps", str(until)) for path in saved)
        code, err = _job(luff, f"{one}; {two}", *options)
        assert code == 0, err
        return err

    part(40)
    assert "2 trainings: 2 ok" in part(90, "--resume")
    assert not (luff.tmp / "run-3").exists()
    for name in ("run", "run-2"):
        with luff_package.open_trial(luff.tmp / name) as trial:
            assert trial.steps("TRAIN") == list(range(90))


def test_each_training_has_its_outputs_and_its_report(luff: Luff) -> None:
    options = ("--tensorboard", str(luff.tmp / "board"), "--report", str(luff.tmp / "night.html"))
    code, err = _job(luff, "; ".join(_training("--steps", steps) for steps in ("20", "30")), *options)
    assert code == 0, err
    for name in ("board", "board-2"):
        assert list((luff.tmp / name).rglob("events.out.tfevents.*")), err
    skip_without_page(err)
    for name, run in (("night.html", "run"), ("night-2.html", "run-2")):
        assert Report((luff.tmp / name).read_text()).json("")["card"]["place"] == run


def test_a_job_of_one_training_says_nothing_of_others(luff: Luff) -> None:
    code, err = _job(luff, _training("--steps", "20"))
    assert code == 0, err
    assert "trainings:" not in err
    assert "of its own" not in err
    assert sorted(path.name for path in luff.tmp.glob("run*")) == ["run"]


def _torchrun(_folder: Path, _port: int, *arguments: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return shlex.join([*launcher, str(SCRIPTS / "ranks.py"), *arguments])


def _launcher(folder: Path, port: int, *arguments: str) -> str:
    """Returns the command of a launcher of two ranks that need no torch."""
    script = folder / "launch.py"
    script.write_text(
        f"""
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, {str(SCRIPTS / "steps.py")!r}, *sys.argv[2:]],
        env=os.environ
        | {{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": sys.argv[1]}},
    )
    for rank in (0, 1)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
    )
    return shlex.join([sys.executable, str(script), str(port), *arguments])


@pytest.mark.parametrize("apart", [True, False], ids=["one after the other", "at once"])
@pytest.mark.parametrize("launcher", [_launcher, pytest.param(_torchrun, marks=pytest.mark.thorough)])
def test_worlds_of_ranks(luff: Luff, launcher: Callable[..., str], apart: bool) -> None:
    ports = (29500, 29500) if apart else (29500, 29501)  # only one world at a time can have a port
    worlds = [launcher(luff.tmp, port, "--steps", n) for port, n in zip(ports, ("30", "40"), strict=True)]
    code, err = _job(luff, "; ".join(worlds) if apart else f"{worlds[0]} & {worlds[1]} & wait", timeout_s=240)
    assert code == 0, err
    seen = []
    for name in ("run", "run-2"):
        with luff_package.open_trial(luff.tmp / name) as trial:
            seen.append([worker["last_train_step"] for worker in trial.workers()])
    assert sorted(seen) == [[29, 29], [39, 39]]
    assert err.splitlines()[-1] == "luff: 2 trainings: 2 ok"
