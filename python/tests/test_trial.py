"""The trial API over runs that a session recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import luff
import numpy as np
import pytest
from luff import _core, errors
from luff._codes import DType, EndReason, EventKind, Mode, Role

CONFIG = {
    "collections": [
        {
            "name": "everything",
            "include": ["."],
            "forms": ["summary", "raw", "histogram"],
            "save": {"save_interval": 1},
        }
    ]
}


class Recording:
    """A session with a short way to describe a step."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.session = _core.Session.open(str(path), config_json=json.dumps(CONFIG), **options)
        self.global_step = 0
        self.mode_steps = dict.fromkeys(Mode, 0)

    def step(
        self, mode: Mode = Mode.TRAIN, scalars: dict[str, float] | None = None, **arrays: tuple[DType, Any]
    ) -> None:
        s = self.session
        mode_step = self.mode_steps[mode]
        s.begin_step(int(mode), mode_step)
        for name, (dtype, array) in arrays.items():
            array = np.asarray(array, order="C")
            tensor = s.define_tensor(name, int(Role.WEIGHT))
            layout = s.define_layout(int(dtype), list(array.shape))
            s.capture_one(tensor, layout, array.ctypes.data)
        for name, value in (scalars or {}).items():
            s.scalar(s.define_tensor(name, int(Role.SCALAR)), value)
        s.event(int(EventKind.BACKWARD))
        s.end_step(int(mode), self.global_step, mode_step, mode_step)
        self.global_step += 1
        self.mode_steps[mode] += 1

    def close(self) -> None:
        self.session.close(int(EndReason.COMPLETED), 10.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten TRAIN steps and one EVAL step of a weight and a loss."""
    path = tmp_path / "run"
    recording = Recording(path)
    for i in range(10):
        x = np.arange(12, dtype=np.float32).reshape(3, 4) + i
        recording.step(scalars={"loss": 1.0 / (1 + i)}, w=(DType.FLOAT32, x))
    recording.step(Mode.EVAL, w=(DType.FLOAT32, np.zeros((3, 4), np.float32)))
    recording.close()
    return path


def test_shows_names_steps_and_values(run: Path) -> None:
    with luff.open_trial(run) as trial:
        assert trial.tensors() == ["loss", "w"]
        assert trial.tensors("^w$", mode="EVAL") == ["w"]
        assert trial.tensors(collection="everything", step=3, mode="TRAIN")
        assert trial.steps() == list(range(11))
        assert trial.steps("TRAIN") == list(range(10))
        assert trial.modes() == ["TRAIN", "EVAL"]
        assert trial.mode_step(10) == ("EVAL", 0)
        assert trial.global_step(0, "EVAL") == 10
        assert trial.loaded_all_steps
        assert trial.outcome == "completed"
        assert trial.problems() == []
        w = trial.tensor("w")
        assert w.role == "weight"
        assert w.workers(0) == [0]
        np.testing.assert_array_equal(w.value(3), np.arange(12).reshape(3, 4) + 3)
        assert w.shape(3) == (3, 4)
        assert w.dtype(3) == "float32"
        np.testing.assert_array_equal(w.value(0, "EVAL"), np.zeros((3, 4)))
        assert not w.value(3).flags.writeable


def test_values_of_all_steps(run: Path) -> None:
    w = luff.open_trial(run).tensor("w")
    steps, stack = w.stacked("TRAIN")
    assert steps.tolist() == list(range(10))
    assert stack.shape == (10, 3, 4)
    values = w.values("TRAIN")
    assert list(values) == list(range(10))
    np.testing.assert_array_equal(values[7], w.value(7, "TRAIN"))


def test_an_array_outlives_its_trial(run: Path) -> None:
    value = luff.open_trial(run).tensor("w").value(5)
    assert value[0, 0] == 5


def test_scalars_summaries_and_events(run: Path) -> None:
    trial = luff.open_trial(run)
    loss = trial.scalars("loss")
    np.testing.assert_array_equal(loss["value"], 1.0 / (1 + np.arange(10)))
    columns = trial.tensor("w").summaries("TRAIN")
    assert columns["step"].tolist() == list(range(10))
    np.testing.assert_allclose(columns["mean"], 5.5 + np.arange(10))
    np.testing.assert_allclose(columns["max"], 11.0 + np.arange(10))
    assert {e["kind"] for e in trial.events()} == {"backward"}


@pytest.mark.parametrize("magnitudes", [False, True])
@pytest.mark.parametrize("name", luff.trial.REDUCTIONS)
def test_reductions_are_those_of_numpy(tmp_path: Path, name: str, magnitudes: bool) -> None:
    x = np.array([-1.5, 0.25, 2.0, -3.0])
    recording = Recording(tmp_path / "run")
    recording.step(x=(DType.FLOAT64, x))
    recording.close()
    y = np.abs(x) if magnitudes else x
    expected = {
        "min": y.min(),
        "max": y.max(),
        "mean": y.mean(),
        "std": y.std(),
        "variance": y.var(),
        "sum": y.sum(),
        "prod": y.prod(),
        "l1": np.abs(y).sum(),
        "l2": np.linalg.norm(y),
    }[name]
    found = luff.open_trial(tmp_path / "run").tensor("x").reduction(0, name, abs=magnitudes)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (DType.BOOL, np.array([True, False])),
        (DType.INT8, np.array([-3, 5], np.int8)),
        (DType.UINT64, np.array([2**63], np.uint64)),
        (DType.FLOAT16, np.array([1.5, -2], np.float16)),
        (DType.COMPLEX64, np.array([1 + 2j], np.complex64)),
        (DType.FLOAT32, np.float32(7)),
        (DType.FLOAT32, np.empty((0, 3), np.float32)),
    ],
)
def test_types_and_shapes(tmp_path: Path, dtype: DType, values: Any) -> None:
    recording = Recording(tmp_path / "run")
    recording.step(x=(dtype, values))
    recording.close()
    found = luff.open_trial(tmp_path / "run").tensor("x").value(0)
    assert found.dtype == np.asarray(values).dtype
    assert found.shape == np.asarray(values).shape
    np.testing.assert_array_equal(found, values)


def test_bfloat16(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1.5, -2, math.inf], ml_dtypes.bfloat16)
    recording = Recording(tmp_path / "run")
    recording.step(x=(DType.BFLOAT16, x))
    recording.close()
    found = luff.open_trial(tmp_path / "run").tensor("x").value(0)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), x.astype(np.float32))


def test_histogram_and_quantile(run: Path) -> None:
    w = luff.open_trial(run).tensor("w")
    low, high, count = w.histogram(9)
    assert count.sum() == 12
    assert (low < high).all()
    assert w.quantile(9, 0.5) == pytest.approx(np.median(w.value(9)), rel=0.1)


def test_errors_name_what_is_near(run: Path) -> None:
    trial = luff.open_trial(run)
    with pytest.raises(errors.NotFoundError, match='"loss"'):
        trial.tensor("los")
    with pytest.raises(errors.InvalidArgumentError, match="TRAIN, EVAL, PREDICT or GLOBAL"):
        trial.steps("training")
    with pytest.raises(errors.OutOfRangeError, match="nearest saved: 10"):
        trial.tensor("w").value(99)
    with pytest.raises(errors.InvalidArgumentError):
        trial.tensors("w(")
    with pytest.raises(errors.NotFoundError, match="no worker 7"):
        trial.tensor("w").value(0, worker=7)
    with pytest.raises(errors.InvalidArgumentError, match="variance"):
        trial.tensor("w").reduction(0, "median")
    with pytest.raises(errors.NotFoundError):
        luff.open_trial(run / "absent")


def test_follows_a_running_job(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run")
    recording.step(w=(DType.FLOAT32, np.ones(3, np.float32)))
    trial = luff.open_trial(tmp_path / "run", wait_s=10)
    assert trial.steps() == [0]
    assert trial.outcome == "running"
    with pytest.raises(errors.UnavailableError):
        trial.tensor("w").value(1)
    with pytest.raises(errors.DeadlineExceededError):
        trial.wait_for_step(1, timeout_s=0.01)
    recording.step(w=(DType.FLOAT32, np.ones(3, np.float32)))
    trial.wait_for_step(1, timeout_s=10)
    assert trial.tensor("w").value(1).sum() == 3
    recording.close()
    while not trial.loaded_all_steps:
        assert trial.wait_for_news(10)
    with pytest.raises(errors.OutOfRangeError):
        trial.wait_for_step(2, timeout_s=10)
