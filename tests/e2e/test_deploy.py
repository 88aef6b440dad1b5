"""The recipes in `deploy/`: the unit is a valid one, and what jobs of Slurm run is run here, as Slurm would."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import luff as package
import pytest

from .conftest import Luff

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_systemd_takes_the_unit(luff: Luff) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "systemd/luff-watch@.service").read_text()
    assert "%h/.local/bin/luff" in text
    unit = luff.tmp / "luff-watch@.service"
    unit.write_text(text.replace("%h/.local/bin/luff", str(luff.executable)))
    done = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", str(unit)],
        env=luff.environment | {"XDG_RUNTIME_DIR": str(luff.tmp)},
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "luff-watch" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def job(luff: Luff, recipe: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Runs a batch script as Slurm does: by bash, with its variables."""
    folder = luff.tmp / "bin"
    folder.mkdir(exist_ok=True)
    if not (folder / "luff").exists():
        (folder / "luff").symlink_to(luff.executable)
    environment = luff.environment | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LUFF_RUNS": str(luff.tmp / "runs"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return subprocess.Popen(
        ["bash", str(DEPLOY / "slurm" / recipe), *words],
        env=environment | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_tasks_of_an_array_are_trials_and_go_on_when_they_are_queued_again(luff: Luff) -> None:
    (luff.tmp / "runs").mkdir()
    script = luff.tmp / "train.py"
    script.write_text(
        "import sys, time\nimport numpy as np\nimport luff.numpy\n"
        "hook = luff.numpy.attach({'w': np.ones(4, np.float32)})\n"
        "for i in range(int(sys.argv[1])):\n    with hook.step() as step:\n        step.loss(1 / (i + 1))\n"
        "    time.sleep(0.01)\nhook.close()\n"
    )
    array = {"SLURM_JOB_NAME": "digits", "SLURM_ARRAY_JOB_ID": "7"}
    command = [sys.executable, str(script)]
    for task in ("0", "1"):
        first = job(luff, "sweep.sbatch", *command, "10", SLURM_ARRAY_TASK_ID=task, **array)
        _, err = first.communicate(timeout=120)
        assert first.returncode == 0, err
    again = job(luff, "sweep.sbatch", *command, "10", SLURM_ARRAY_TASK_ID="1", **array)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    done = luff.start("compare", "--sweep", "digits-7", str(luff.tmp / "runs"), "--json")
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    trials = json.loads(out)["trials"]
    assert [(trial["trial"], trial["parameters"]["task"]) for trial in trials] == [("0", 0), ("1", 1)]
    with package.open_trial(trials[1]["run"]) as trial:
        assert len(trial.steps()) == 20


@pytest.mark.parametrize("bucket", [False, True])
def test_a_task_that_watches_leaves_when_slurm_says_so(luff: Luff, bucket: bool) -> None:
    (luff.tmp / "runs").mkdir()
    place = f"file://{luff.tmp}/bucket" if bucket else str(luff.tmp / "runs")
    watch = job(
        luff, "watch.sbatch", "--rules", "NonFinite", SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_TASK_COUNT="2",
        LUFF_RUNS=place, LUFF_CACHE=str(luff.tmp / "cache"), LUFF_PYTHON=sys.executable,
    )  # fmt: skip
    assert watch.stderr is not None
    assert "judging the runs" in watch.stderr.readline()
    begun = time.monotonic()
    watch.send_signal(signal.SIGTERM)
    _, err = watch.communicate(timeout=30)
    assert watch.returncode == 0, err
    assert time.monotonic() - begun < 10
    assert bucket or (luff.tmp / "runs/.luff-watch/1-of-2/findings.jsonl").exists()
    assert not bucket or (luff.tmp / "bucket/judges/luff").exists()
