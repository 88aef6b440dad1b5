"""Methods of the hook that begin with an underscore: published scripts call and override them."""

from __future__ import annotations

import logging

import luff.compat.smdebug.pytorch as smd
import numpy as np
import pytest
import torch
from luff.compat.smdebug import create_trial, modes
from luff.compat.smdebug.exceptions import SMDebugError


def _hook(path, kind=smd.Hook, **arguments):
    arguments.setdefault("include_regex", ["input", "output"])
    return kind(out_dir=str(path), save_config=smd.SaveConfig(save_interval=2), **arguments)


def _step(model, backward=True):
    loss = model(torch.ones(2, 3)).sum()
    if backward:
        loss.backward()


def test_inputs_outputs_and_values_that_a_script_writes(tmp_path):
    hook = _hook(tmp_path / "t")
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    for step in range(3):
        _step(model)
        hook._write_inputs("extra", [torch.full((2,), float(step)), (torch.ones(1),)])
        hook._write_inputs("extra", torch.zeros(4))
        hook._write_outputs("extra", torch.ones(3))
        hook._write_outputs("other", {"not": "a tensor"})
        hook._write_raw_tensor_simple("mine", torch.arange(3.0))
        hook._write_raw_tensor_simple("mine/number", 1.5)
        hook._write_raw_tensor_simple("mine/at", np.ones(1), tensor_ref=None, timestamp=1.0)
        hook._write_raw_tensor_simple("mine/empty", torch.zeros(0))
    hook.close()
    hook._write_inputs("late", torch.ones(1))
    hook._write_raw_tensor_simple("late", 1.0)
    trial = create_trial(str(tmp_path / "t"))
    assert [name for name in trial.tensor_names() if not name.startswith("Linear")] == [
        "extra_input_0", "extra_input_1", "extra_input_2", "extra_output_0", "mine", "mine/at", "mine/number",
    ]  # fmt: skip
    assert trial.steps() == [0, 2]  # in a step that is not saved they write nothing
    np.testing.assert_array_equal(trial.tensor("extra_input_0").value(2), [2, 2])
    np.testing.assert_array_equal(trial.tensor("extra_input_2").value(0), np.zeros(4))
    np.testing.assert_array_equal(trial.tensor("mine").value(0), [0, 1, 2])
    assert trial.tensor("mine/number").value(0).tolist() == [1.5]


def test_what_no_collection_wants_is_not_written_as_an_input(tmp_path):
    hook = _hook(tmp_path / "t", include_regex=["^Linear"])
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    _step(model)
    hook._write_inputs("extra", torch.ones(1))
    hook._write_raw_tensor_simple("extra", torch.ones(1))
    hook.close()
    names = create_trial(str(tmp_path / "t")).tensor_names()
    assert "extra_input_0" not in names
    assert "extra" in names


def test_a_derived_hook_sees_all_inputs_outputs_and_values(tmp_path):
    class Doubled(smd.Hook):
        def _write_inputs(self, name, inputs):
            super()._write_inputs(f"my_{name}", inputs)

        def _write_outputs(self, name, outputs):
            super()._write_outputs(f"my_{name}", outputs)

        def _write_raw_tensor_simple(self, tensor_name, tensor_value, tensor_ref=None, timestamp=None):
            super()._write_raw_tensor_simple(tensor_name, tensor_value * 2, tensor_ref, timestamp)

    hook = _hook(tmp_path / "t", Doubled)
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    _step(model)
    hook.save_scalar("one", 1.0)
    hook.record_tensor_value("nll_loss", torch.ones(1))
    hook.close()
    trial = create_trial(str(tmp_path / "t"))
    assert {"my_Linear_input_0", "my_Linear_output_0", "my_nll_loss_output_0"} <= set(trial.tensor_names())
    assert "Linear_input_0" not in trial.tensor_names()
    np.testing.assert_array_equal(trial.tensor("my_Linear_input_0").value(0), np.full((2, 3), 2.0))
    assert trial.tensor("scalar/one").value(0).tolist() == [2.0]


def test_a_value_that_cannot_be_written_harms_no_training(tmp_path, caplog):
    hook = _hook(tmp_path / "t")
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    _step(model)
    with caplog.at_level(logging.WARNING, "smdebug"):
        hook._write_raw_tensor_simple("mine", object())
    assert "a value is left out" in caplog.text
    hook.close()


def test_set_mode_is_obeyed_when_a_backward_pass_follows(tmp_path):
    """A saliency map or an attack in an evaluation: its step is an EVAL step, and has no gradients."""
    hook = _hook(tmp_path / "t", include_collections=["weights", "gradients"])
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    for _ in range(3):
        hook.set_mode(modes.TRAIN)
        _step(model)
        hook.set_mode(modes.EVAL)
        _step(model)
    hook.close()
    trial = create_trial(str(tmp_path / "t"))
    assert trial._global_to_mode == {
        0: (modes.TRAIN, 0), 1: (modes.EVAL, 0), 4: (modes.TRAIN, 2), 5: (modes.EVAL, 2),
    }  # fmt: skip
    assert trial.tensor("Linear_weight").steps(mode=modes.EVAL) == [0, 2]
    assert trial.tensor("gradient/Linear_weight").steps(mode=modes.TRAIN) == [0, 2]
    assert trial.tensor("gradient/Linear_weight").steps(mode=modes.EVAL) == []


def test_errors_name_the_nearest_collections(tmp_path, caplog):
    hook = _hook(tmp_path / "t", include_collections=["gradeints"])
    with pytest.raises(SMDebugError, match="there is no collection 'wieghts'; nearest: 'weights'"):
        hook.get_collection("wieghts", create=False)
    model = torch.nn.Linear(3, 2)
    hook.register_module(model)
    with caplog.at_level(logging.WARNING, "smdebug"):
        _step(model)
    assert "there is no collection 'gradeints', nothing is saved for it; nearest: 'gradients'" in caplog.text
    hook.close()
