"""Trainings in processes of `multiprocessing`, which exit without running the interpreter's exit handlers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import luff
import pytest

SCRIPT = """
import multiprocessing, sys
import numpy as np
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

hook = StepHook(choose_run(sys.argv[1], False, make_config(None, {{}})))

def train():
    hook.open_now()
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.scalar("loss", 1.0, int(Role.LOSS))
    hook.steps.end()

def target():
    train()
    {inside}

if __name__ == "__main__":
    if sys.argv[2] == "fork":
        train()
    child = multiprocessing.get_context(sys.argv[2]).Process(target=target)
    child.start()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("inside", "code", "reason"),
    [
        ("pass", 0, "completed"),
        ("raise RuntimeError('no')", 1, "exception"),
        ("raise KeyboardInterrupt", 1, "signal"),
        ("sys.exit(3)", 3, "completed"),
    ],
)
def test_all_of_a_child_is_recorded(tmp_path: Path, method: str, inside: str, code: int, reason: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(inside=inside))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), method],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(code)]
    with luff.open_trial(str(tmp_path / "run")) as trial:
        workers = [worker["worker"] for worker in trial.workers()]
        assert workers == ([0, 1] if method == "fork" else [0])
        assert trial.tensor("loss").workers(0, "TRAIN") == workers
        child = trial.workers()[-1]
        assert (child["ended"], child["reason"], child["last_step"]) == (True, reason, 0)
