"""Runs of Luff read through smdebug's API."""

from __future__ import annotations

import json

import luff.testing
import ml_dtypes
import numpy as np
import pytest
from luff import _core
from luff._arrays import dtype_code
from luff._codes import DType, EndReason, Mode, Role
from luff.compat.smdebug import create_trial, modes
from luff.compat.smdebug.core.tensor import StepState
from luff.compat.smdebug.exceptions import NoMoreData, TensorUnavailable, TensorUnavailableForStep
from luff.compat.smdebug.rules.req_tensors import RequiredTensors


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


# ---- what notebooks do with a run that Luff recorded ------------------------------------------------------------


@pytest.fixture
def session(tmp_path):
    """Writes a run, step by step; `close` ends it."""

    class Writer:
        def __init__(self):
            config = {
                "max_overhead": 0,
                "collections": [{"name": "kept", "include": ["."], "save": {"save_interval": 1}}],
            }
            self.path = str(tmp_path / "run")
            self.core = _core.Session.open(self.path, config_json=json.dumps(config))
            self.steps = dict.fromkeys(Mode, 0)
            self.core.set_document("environment", json.dumps({"framework": "torch"}))

        def step(self, mode, role=Role.LOSS, numbers=(), **values):
            number = self.steps[mode]
            self.core.begin_step(int(mode), number)
            for name, value in {**dict(numbers), **values}.items():
                tensor = self.core.define_tensor(name, int(role))
                if isinstance(value, float):
                    self.core.scalar(tensor, value)
                    continue
                code = dtype_code(value.dtype)
                layout = self.core.define_layout(code, list(value.shape))
                self.core.capture_one(tensor, layout, value.ctypes.data)
            self.core.end_step(int(mode), self.steps[Mode.GLOBAL], number, number)
            self.steps[mode] += 1
            self.steps[Mode.GLOBAL] += 1

        def trial(self):
            self.core.close(int(EndReason.COMPLETED), 10.0)
            return create_trial(self.path)

    return Writer()


def test_values_of_a_loss_have_one_shape_and_dtype(session):
    """A loss is a number at each step, and a tensor where a collection wants it."""
    session.step(Mode.TRAIN, loss=np.array(1.5, np.float32))
    session.step(Mode.TRAIN, loss=1.25)
    session.step(Mode.EVAL, loss=1.0)
    session.step(Mode.TRAIN, loss=np.array(0.5, np.float32))
    tensor = session.trial().tensor("loss")
    for mode, expected in (
        (modes.GLOBAL, [1.5, 1.25, 1, 0.5]),
        (modes.TRAIN, [1.5, 1.25, 0.5]),
        (modes.EVAL, [1]),
    ):
        values = np.stack(list(tensor.values(mode=mode).values()))
        assert (values.shape, values.dtype) == ((len(expected),), np.float32)
        np.testing.assert_array_equal(values, expected)
    assert tensor.steps(mode=modes.TRAIN) == [0, 1, 2]
    assert f"{tensor.value(1):.2f}" == "1.25"


def test_numbers_alone_have_the_shapes_that_smdebug_gave_them(session):
    session.step(Mode.TRAIN, loss=1.25)
    session.step(Mode.TRAIN, Role.SCALAR, {"scalar/accuracy": 0.5})
    trial = session.trial()
    loss, scalar = trial.tensor("loss").value(0), trial.tensor("scalar/accuracy").value(1)
    assert (loss.shape, loss.dtype, loss) == ((), np.float64, 1.25)
    assert (scalar.shape, scalar.dtype, scalar[0]) == ((1,), np.float64, 0.5)


@pytest.mark.parametrize("full", [np.float32, np.float64])
def test_values_kept_as_bfloat16_are_read_like_the_others(session, full):
    """When memory is short, values are kept as bfloat16."""
    weight = np.array([1.0, -2.5, 0.25], full)
    session.step(Mode.TRAIN, Role.WEIGHT, weight=weight.astype(ml_dtypes.bfloat16))
    session.step(Mode.TRAIN, Role.WEIGHT, weight=weight)
    values = list(session.trial().tensor("weight").values().values())
    assert [value.dtype for value in values] == [full, full]
    stack = np.stack(values)
    np.testing.assert_array_equal(stack, [weight, weight])


def test_bfloat16_throughout_is_read_as_float32(session):
    session.step(Mode.TRAIN, Role.WEIGHT, weight=np.ones(3, ml_dtypes.bfloat16))
    value = session.trial().tensor("weight").value(0)
    assert value.dtype == np.float32
    value -= 1  # an array of the notebook's own, as smdebug's were
    assert not value.any()


def test_batches_of_their_own_size_keep_it(session):
    for rows in (8, 8, 5):
        session.step(Mode.TRAIN, Role.INPUT, x_input_0=np.ones((rows, 2), np.float32))
    values = session.trial().tensor("x_input_0").values()
    assert [value.shape for value in values.values()] == [(8, 2), (8, 2), (5, 2)]


def test_steps_are_those_that_hold_the_value_by_mode(tmp_path):
    """With summaries at each step and values at every third, all of `steps()` can be read."""
    config = {
        "max_overhead": 0,
        "collections": [
            {
                "name": "values",
                "roles": ["weight"],
                "forms": ["raw"],
                "save": {"TRAIN": {"save_interval": 3}},
            },
        ],
    }
    core = _core.Session.open(str(tmp_path / "run"), config_json=json.dumps(config))
    layout = core.define_layout(int(DType.FLOAT32), [1])
    weight, bias = (
        core.define_tensor("fc.weight", int(Role.WEIGHT)),
        core.define_tensor("fc.bias", int(Role.BIAS)),
    )
    core.define_tensor("never", int(Role.WEIGHT))
    values = np.arange(1, dtype=np.float32)
    for step in range(14):
        mode, number = (Mode.EVAL, step // 2) if step % 2 else (Mode.TRAIN, step // 2)
        core.begin_step(int(mode), number)
        for tensor in (weight, bias):
            core.capture_one(tensor, layout, values.ctypes.data)
        core.end_step(int(mode), step, number, 0)
    core.close(int(EndReason.COMPLETED), 10.0)
    trial = create_trial(str(tmp_path / "run"))
    tensor = trial.tensor("fc.weight")
    assert tensor.steps(mode=modes.TRAIN) == [0, 3, 6]
    assert tensor.steps(mode=modes.EVAL) == [0]  # the run's interval, 500
    assert tensor.steps() == [0, 1, 6, 12]
    assert tensor.steps(mode=modes.PREDICT) == []
    for mode in (modes.GLOBAL, modes.TRAIN, modes.EVAL):
        assert list(tensor.values(mode=mode)) == tensor.steps(mode=mode)
    assert tensor.prev_steps(5, 1, mode=modes.TRAIN) == [3]
    assert tensor.reduction_value(4, "mean", mode=modes.TRAIN) == 0.0  # summaries are at each step
    assert "fc.weight" in trial.tensor_names(step=4, mode=modes.TRAIN)
    # Of the bias there are summaries only.
    assert trial.tensor("fc.bias").steps(mode=modes.EVAL) == list(range(7))
    with pytest.raises(TensorUnavailableForStep, match="reductions"):
        trial.tensor("fc.bias").values()
    # Of a tensor that was named, and of which nothing was recorded, smdebug knew nothing.
    assert "never" not in trial.tensor_names()
    with pytest.raises(TensorUnavailable):
        trial.tensor("never")


def test_global_steps_and_modes(session):
    for mode in (Mode.TRAIN, Mode.EVAL, Mode.TRAIN):
        session.step(mode, loss=1.0)
    trial = session.trial()
    assert trial._global_to_mode == {0: (modes.TRAIN, 0), 1: (modes.EVAL, 0), 2: (modes.TRAIN, 1)}
    assert trial._mode_to_global == {modes.TRAIN: {0: 0, 1: 2}, modes.EVAL: {0: 1}}


def test_errors_name_the_nearest_tensors(session, caplog):
    names = ("Net_fc1.weight", "Net_fc2.weight", "Net_fc1.bias", "CrossEntropyLoss_output_0")
    session.step(Mode.TRAIN, Role.WEIGHT, **{name: np.ones(2, np.float32) for name in names})
    trial = session.trial()
    with pytest.raises(
        TensorUnavailable, match=r"nearest: 'Net_fc1\.weight', 'Net_fc2\.weight', 'Net_fc1\.bias'"
    ):
        trial.tensor("Net_fc1.weigth")
    with pytest.raises(TensorUnavailable, match=r"nearest: 'CrossEntropyLoss_output_0'"):
        trial.tensor("loss")
    with pytest.raises(TensorUnavailable, match=r"nearest: 'Net_fc1\.weight'"):
        RequiredTensors(trial).add("Net_fc1.wieght", [0])
    with caplog.at_level("WARNING", "smdebug"):
        assert trial.tensor_names(collection="wieghts") == []
    assert "no tensor of the collection 'wieghts'; nearest: 'weights'" in caplog.text


def test_smdebugs_collections_are_there_whatever_the_run_collected(session):
    session.step(Mode.TRAIN, Role.INPUT, Net_input_0=np.ones(2, np.float32))
    session.step(Mode.TRAIN, Role.LABEL, Loss_input_1=np.ones(2, np.int64))
    trial = session.trial()
    assert trial.tensor_names(collection="inputs") == ["Net_input_0"]
    assert trial.tensor_names(collection="labels") == ["Loss_input_1"]
    assert trial.tensor_names(collection="outputs") == []
