"""The hook shared by frameworks that report their steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import luff
import numpy as np
import pytest
from luff._arrays import dtype_code
from luff._base_hook import choose_run, make_config
from luff._codes import DType, Mode, Role
from luff._step_hook import StepHook
from luff.errors import InvalidArgumentError

TRAIN, EVAL = int(Mode.TRAIN), int(Mode.EVAL)


def a_hook(path: Path, resume: bool = False, **options: Any) -> StepHook:
    hook = StepHook(choose_run(path, resume, make_config(None, options)))
    hook.open_now()
    return hook


def scalars(trial: luff.Trial, name: str, mode: str, worker: int | None = None) -> dict[int, float]:
    found = trial.scalars(name, mode, worker)
    return dict(zip(found["mode_step"].tolist(), found["value"].tolist(), strict=True))


def train(hook: StepHook, loss: float, weight: np.ndarray) -> None:
    def step() -> None:
        hook.steps.begin(TRAIN)
        hook.steps.scalar("loss", loss, int(Role.LOSS))
        hook.steps.array("dense.weight", weight, int(Role.WEIGHT))
        hook.steps.updated()
        hook.steps.end()

    hook.while_live("step", step)
    hook.boundary()


def test_steps_values_and_updates_are_read_back(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run", save_all=True, save_interval=1) as hook:
        for index in range(3):
            train(hook, 1.0 / (index + 1), np.full((2, 3), index, dtype=np.float32))
            hook.steps.begin(EVAL)
            hook.steps.scalar("val_loss", 2.0)
            hook.steps.end()
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert trial.steps("TRAIN") == [0, 1, 2]
        assert trial.steps("EVAL") == [0, 1, 2]
        assert scalars(trial, "loss", "TRAIN")[2] == pytest.approx(1 / 3)
        np.testing.assert_array_equal(trial.tensor("dense.weight").value(1, mode="TRAIN"), np.ones((2, 3)))
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 1, 1, 2, 2, 3]


def test_what_users_give_outside_of_a_step_goes_into_the_next(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run", save_all=True, save_interval=1) as hook:
        hook.save_scalar("rate", 0.5)
        given = np.arange(4.0)
        hook.save_tensor("mine", given)
        given[:] = 7
        train(hook, 1.0, np.zeros(2))
        hook.save_scalar("last", 3.0)
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert scalars(trial, "scalar/rate", "TRAIN") == {0: 0.5}
        np.testing.assert_array_equal(trial.tensor("mine").value(0, mode="TRAIN"), np.arange(4.0))
        assert list(scalars(trial, "scalar/last", "GLOBAL").values()) == [3.0]


def test_what_is_saved_beyond_the_bound_leaves_a_gap_with_its_name(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run", save_all=True, save_interval=1) as hook:
        for index in range(1025):
            hook.save_scalar(f"n{index}", index)
            hook.save_tensor(f"t{index}", np.zeros(1))
        train(hook, 1.0, np.zeros(2))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert [(gap["tensor"], gap["reason"]) for gap in trial.gaps()] == [
            ("scalar/n1024", "too many"),
            ("t1024", "too many"),
        ]
        assert scalars(trial, "scalar/n1023", "TRAIN") == {0: 1023}


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run") as hook:
        for _ in range(2):
            train(hook, 1.0, np.zeros(2))
    with a_hook(tmp_path / "run", resume=True) as hook:
        train(hook, 0.5, np.zeros(2))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert trial.steps("TRAIN") == [0, 1, 2]
        assert scalars(trial, "loss", "TRAIN")[2] == 0.5


def test_errors_are_counted_and_never_raised(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run") as hook:
        hook.save_tensor("mine", object())
        train(hook, 1.0, np.zeros(2))
        hook.while_live("array", hook.steps.array, "odd", np.zeros(2, dtype=np.complex64), int(Role.WEIGHT))
        assert hook.while_live("broken", lambda: 1 / 0) is None
        report = hook.health()
    assert report["hook_errors"] >= 1
    assert "ZeroDivisionError" in report["hook_error_places"]["broken"]


def test_a_forked_child_is_a_worker_of_its_own(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run") as hook:
        train(hook, 1.0, np.zeros(2))
        child = os.fork()
        if child == 0:
            train(hook, 9.0, np.zeros(2))
            hook.close()
            os._exit(0)
        os.waitpid(child, 0)
        train(hook, 0.5, np.zeros(2))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert scalars(trial, "loss", "TRAIN", worker=1) == {0: 9.0}
        assert scalars(trial, "loss", "TRAIN", worker=0) == {0: 1.0, 1: 0.5}


def test_a_mode_that_is_none_is_refused(tmp_path: Path) -> None:
    with a_hook(tmp_path / "run") as hook:
        with pytest.raises(InvalidArgumentError, match="no mode is called 'training'"):
            hook.set_mode("training")
        hook.set_mode("EVAL")
        train(hook, 1.0, np.zeros(2))
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert trial.steps("EVAL") == [0]


def test_without_a_run_a_new_one_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUFF_HOME", str(tmp_path))
    chosen = choose_run(None, False, {})
    assert Path(chosen.path).parent == tmp_path / "runs"
    assert not tmp_path.joinpath("runs").exists()  # nothing is made before the run is opened


def test_types_by_name() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert dtype_code(np.float32) == DType.FLOAT32
    assert dtype_code(ml_dtypes.bfloat16) == DType.BFLOAT16
    assert dtype_code(np.dtype("U3")) is None
