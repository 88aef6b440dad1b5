"""A run directory that is removed, moved or cut off while it is written and read: the training continues."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import luff
import numpy as np
import pytest
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

VALUES = np.arange(40_000, dtype=np.float32)


def a_hook(path: Path) -> StepHook:
    options = {"save_all": True, "save_interval": 1, "max_overhead": 0}
    hook = StepHook(choose_run(path, False, make_config(None, options)))
    hook.open_now()
    return hook


def train(hook: StepHook, steps: range) -> None:
    for step in steps:
        hook.steps.begin(int(Mode.TRAIN))
        hook.steps.scalar("loss", float(step), int(Role.LOSS))
        hook.steps.array("weight", VALUES + np.float32(step), int(Role.WEIGHT))
        hook.steps.updated()
        hook.steps.end()
        hook.boundary()
    hook.flush()


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_a_run_that_is_removed_ends_the_recording_and_says_why(tmp_path: Path) -> None:
    hook = a_hook(tmp_path / "run")
    train(hook, range(5))
    shutil.rmtree(tmp_path / "run")
    train(hook, range(5, 10))
    assert eventually(lambda: not hook.health()["accepting"])
    assert "the run directory was removed while it was written" in hook.health()["first_error"]
    train(hook, range(10, 15))
    hook.close()
    assert not (tmp_path / "run").exists()
    assert hook.health()["hook_errors"] == 0


def test_a_run_that_is_moved_is_written_where_it_is(tmp_path: Path) -> None:
    hook = a_hook(tmp_path / "run")
    train(hook, range(5))
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run" / "w0000").mkdir(parents=True)
    train(hook, range(5, 10))
    hook.close()
    assert not list((tmp_path / "run" / "w0000").iterdir())
    with luff.open_trial(str(tmp_path / "moved")) as trial:
        assert trial.steps("TRAIN") == list(range(10))
        assert trial.workers()[0]["reason"] == "completed"


@pytest.mark.parametrize("length", [0, 100, 5000, None])
@pytest.mark.parametrize("name", ["live", "m-000001.lfm", "d-000001.lfd"])
def test_a_file_that_is_cut_off_or_removed_ends_neither_training_nor_reader(
    tmp_path: Path, name: str, length: int | None
) -> None:
    hook = a_hook(tmp_path / "run")
    train(hook, range(5))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        path = tmp_path / "run" / "w0000" / name
        if length is None:
            path.unlink()
        else:
            os.truncate(path, min(length, path.stat().st_size))
        train(hook, range(5, 10))
        hook.close()
        trial.refresh()
        assert trial.steps("TRAIN")[-5:] == list(range(5, 10))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        weight = trial.tensor("weight")
        for step in range(5, 10):
            np.testing.assert_array_equal(weight.value(step, mode="TRAIN"), VALUES + np.float32(step))
        lost = [gap for gap in trial.gaps() if gap["reason"] == "file lost"]
        assert [(gap["first_step"], gap["last_step"]) for gap in lost] == ([] if name == "live" else [(0, 4)])
