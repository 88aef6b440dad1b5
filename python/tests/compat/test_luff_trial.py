"""Runs of Luff read through smdebug's API."""

from __future__ import annotations

import luff.testing
import numpy as np
import pytest
from luff.compat.smdebug import create_trial, modes
from luff.compat.smdebug.core.tensor import StepState
from luff.compat.smdebug.exceptions import NoMoreData, TensorUnavailable, TensorUnavailableForStep


@pytest.fixture
def run():
    values = {"fc.weight": [[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]], "loss": [0.5, 0.4, 0.3]}
    return luff.testing.trial(values)


def test_values_reductions_and_steps(run):
    trial = create_trial(run.path)
    assert trial.steps() == trial.steps(modes.TRAIN) == [0, 1, 2]
    assert trial.steps(modes.EVAL) == []
    assert trial.loaded_all_steps
    assert trial.workers() == ["worker_0"]
    assert trial.tensor_names() == ["fc.weight", "loss"]
    weight = trial.tensor("fc.weight")
    np.testing.assert_array_equal(weight.value(1), [3.0, 4.0])
    np.testing.assert_array_equal(weight.value(1, mode=modes.TRAIN), [3.0, 4.0])
    assert weight.steps() == [0, 1, 2]
    assert weight.shape(0) == (2,)
    assert weight.reduction_value(0, "mean", abs=True) == pytest.approx(1.5)
    assert weight.reduction_value(0, "prod") == pytest.approx(-2.0)
    assert trial.tensor("loss").value(2)[0] == pytest.approx(0.3)
    assert trial.has_passed_step(7) is StepState.UNAVAILABLE


def test_what_is_not_there_is_told_in_smdebugs_words(run):
    trial = create_trial(run.path)
    with pytest.raises(TensorUnavailable):
        trial.tensor("nothing")
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([9])


def test_steps_out_of_range_are_not_there(tmp_path):
    from luff import _core
    from luff._codes import DType, EndReason, Mode, Role

    session = _core.Session.open(str(tmp_path / "run"))
    layout = session.define_layout(int(DType.FLOAT32), [1])
    for step in range(10):
        session.begin_step(int(Mode.TRAIN), step)
        name = "early" if step < 3 else "late"
        session.capture_one(
            session.define_tensor(name, int(Role.WEIGHT)), layout, np.full(1, step, np.float32).ctypes.data
        )
        session.end_step(int(Mode.TRAIN), step, step, 0)
    session.close(int(EndReason.COMPLETED), 10.0)
    trial = create_trial(str(tmp_path / "run"), range_steps=(5, 8))
    assert trial.steps() == trial.steps(modes.TRAIN) == [5, 6, 7]
    assert trial.tensor_names() == ["late"]
    assert not trial.has_tensor("early")
    with pytest.raises(TensorUnavailable):
        trial.tensor("early")
    late = trial.tensor("late")
    assert late.steps() == [5, 6, 7]
    assert late.workers(6) == ["worker_0"]
    for step in (4, 8):
        with pytest.raises(TensorUnavailableForStep):
            late.workers(step)
    assert trial.has_passed_step(8) is StepState.UNAVAILABLE
    assert create_trial(str(tmp_path / "run"), range_steps=(None, 2)).tensor_names() == ["early"]
    assert create_trial(str(tmp_path / "run"), range_steps=(3, None)).steps() == list(range(3, 10))


def test_only_summaries_are_reductions(tmp_path):
    from luff import _core
    from luff._codes import DType, EndReason, Mode, Role

    session = _core.Session.open(str(tmp_path / "run"))
    value = np.array([1.0, -3.0], np.float32)
    weight = session.define_tensor("fc.weight", int(Role.WEIGHT))
    layout = session.define_layout(int(DType.FLOAT32), [2])
    session.begin_step(int(Mode.TRAIN), 0)
    session.capture_one(weight, layout, value.ctypes.data)
    session.end_step(int(Mode.TRAIN), 0, 0, 0)
    session.close(int(EndReason.COMPLETED), 10.0)
    tensor = create_trial(str(tmp_path / "run")).tensor("fc.weight")
    with pytest.raises(TensorUnavailableForStep, match="reductions"):
        tensor.value(0)
    assert tensor.reduction_value(0, "max", abs=True) == 3.0
    assert tensor.reduction_values(0)["l1", False] == 4.0
