"""Rules beside a training that attached itself: `attach(..., rules=True)` and `luff watch`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import luff as package
import pytest

from .conftest import Luff, processes_with

_SCRIPT = """
import sys, time
import numpy as np
import luff.numpy

weights = {{"w": np.ones(4, np.float32)}}
hook = luff.numpy.attach(weights, run={run!r}, {options})
for number in range({steps}):
    with hook.step() as step:
        step.gradients({{"w": np.full(4, 0.1, np.float32)}})
        step.loss(float("nan") if number >= {nan_at} else 1.0 / (number + 1))
    time.sleep(0.005)
print("trained")
"""


def _environment(luff: Luff) -> dict[str, str]:
    """Returns that of a script which starts the command itself."""
    own = {"LUFF_EXECUTABLE": str(luff.executable), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return luff.environment | own


def train(
    luff: Luff, options: str, *, steps: int = 30, nan_at: int = 10**9, run: str = "run"
) -> subprocess.CompletedProcess[str]:
    """Runs a script that attaches itself; waits for it and for the rules beside it, which hold its stderr."""
    script = luff.tmp / "train.py"
    script.write_text(_SCRIPT.format(run=str(luff.tmp / run), options=options, steps=steps, nan_at=nan_at))
    return subprocess.run(
        [sys.executable, str(script)],
        env=_environment(luff),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_rules_beside_a_training(luff: Luff) -> None:
    done = train(luff, "rules=True")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "luff: ok: 30 steps" in done.stderr
    with package.open_trial(luff.tmp / "run") as trial:
        assert (trial.outcome, trial.findings()) == ("completed", [])


def test_a_finding_stops_the_training_that_asked_for_it(luff: Luff) -> None:
    done = train(luff, "rules='NonFinite', on_finding='stop'", steps=4000, nan_at=20)
    assert (done.returncode, done.stdout) == (76, "")
    assert "NonFinite: the loss is NaN since step 20" in done.stderr  # WARN first, where one step was seen
    with package.open_trial(luff.tmp / "run") as trial:
        assert trial.outcome == "stopped"
        assert [finding["rule"] for finding in trial.findings()] == ["NonFinite"]
        assert trial.findings()[0]["since_step"] == 20


def test_a_finding_alone_stops_nothing(luff: Luff) -> None:
    done = train(luff, "rules='NonFinite'", steps=60, nan_at=20)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "NonFinite" in done.stderr


def test_what_later_records_is_judged_later(luff: Luff) -> None:
    """`attach` alone records too little for most rules, and the verdict says so."""
    for options, lacks in (("rules='later'", False), ("", True)):
        done = train(luff, options, run=f"run{lacks}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")  # nothing runs beside it
        code, out, err = luff("check", str(luff.tmp / f"run{lacks}"))
        assert code == 0, err
        assert ("recorded without what" in out and "--rules later" in out) == lacks, out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rules='DeadRelo'", "nearest: DeadRelu"),
        ("rules=3", "rules is 3; expected True, a list of rules, or a text as for `luff run --rules`"),
        ("on_finding='stop'", "on_finding='stop' without rules="),
        ("rules='later', on_finding='stop'", "no rule is judged here that could stop the job"),
        ("rules=True, on_finding='halt'", "on_finding is 'halt'; expected 'warn' or 'stop'"),
    ],
)
def test_a_mistake_is_an_error_at_once(luff: Luff, options: str, said: str) -> None:
    done = train(luff, options)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (luff.tmp / "run").exists()


def test_under_luff_run_its_rules_count(luff: Luff) -> None:
    script = luff.tmp / "train.py"
    script.write_text(_SCRIPT.format(run="elsewhere", options="rules=True", steps=30, nan_at=10**9))
    code, out, err = luff("run", "--rules", "NonFinite", "--", sys.executable, str(script))
    assert (code, out) == (0, "trained\n"), err
    assert err.count("luff: ok") == 1
    assert not processes_with(f"watch {luff.tmp}")


def test_the_rules_end_with_a_training_that_is_killed(luff: Luff) -> None:
    script = luff.tmp / "train.py"
    script.write_text(
        _SCRIPT.format(run=str(luff.tmp / "run"), options="rules=True", steps=100_000, nan_at=10**9)
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=_environment(luff),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as training:
        deadline = time.monotonic() + 60
        while not processes_with(f"watch {luff.tmp / 'run'}"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        training.send_signal(signal.SIGKILL)
        _, err = training.communicate(timeout=60)  # until the rules have let go of it
    assert "luff: " in err
    assert not processes_with(f"watch {luff.tmp / 'run'}")


_AGAIN = """
import numpy as np
import luff.numpy

def train(rules, nan_at):
    with luff.numpy.attach({{"w": np.ones(4, np.float32)}}, run={run!r}, resume=True, rules=rules) as hook:
        for number in range(20):
            with hook.step() as step:
                step.loss(float("nan") if number == nan_at else 1.0 / (number + 1))
        return hook.health()["hook_errors"]

print(train("LossNotDecreasing", -1), train("NonFinite", 5), train(False, -1))
"""


def test_a_run_is_resumed_as_soon_as_the_earlier_rules_have_let_go_of_it(luff: Luff) -> None:
    script = luff.tmp / "again.py"
    script.write_text(_AGAIN.format(run=str(luff.tmp / "run")))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=_environment(luff),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 0 0\n"
    with package.open_trial(luff.tmp / "run") as trial:
        assert (trial.outcome, len(trial.steps("TRAIN"))) == ("completed", 60)
        assert [(f["rule"], f["since_step"]) for f in trial.findings()] == [("NonFinite", 25)]


def test_watch_by_hand(luff: Luff) -> None:
    done = train(luff, "", nan_at=12)
    assert (done.returncode, done.stderr) == (0, "")
    run = str(luff.tmp / "run")
    code, out, err = luff("watch", run, "--rules", "NonFinite")
    assert (code, out) == (3, ""), err  # that of `luff check`
    assert "luff: the training has ended (completed); what rules have not seen of it is judged now" in err
    assert "luff: STOP NonFinite" in err
    assert "1 finding: STOP NonFinite" in err.splitlines()[-1]
    # Once more: nothing is left to judge, and what was found still stands.
    code, out, err = luff("watch", run, "--rules", "NonFinite")
    assert (code, out) == (3, "")
    assert "luff: STOP NonFinite" not in err
    assert "1 finding: STOP NonFinite" in err.splitlines()[-1]
    code, _, err = luff("watch", run, "--on-finding", "maybe")
    assert code == 2
    assert "there are warn and stop" in err
    code, _, err = luff("watch", __file__)  # neither a run nor a directory of runs
    assert code == 2
    assert Path(run).exists()


def test_the_outcome_of_an_ended_run_is_not_written_again(luff: Luff) -> None:
    job = luff.run("steps.py", "--on-finding", "stop", arguments=("--nan-at", "30", "--steps", "100000"))
    assert job.code == 76, job.stderr

    def told() -> tuple[str, str, list[str]]:
        with package.open_trial(job.run) as trial:
            return trial.outcome, trial.outcome_reason, sorted(os.listdir(job.run / "control"))

    before = told()
    assert before[0] == "stopped"
    code, _, err = luff("watch", str(job.run))
    assert code == luff("check", str(job.run))[0] == 3
    assert f"the training has ended (stopped: {before[1]})" in " ".join(err.split())
    assert told() == before
