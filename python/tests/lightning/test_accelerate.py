"""Loops with Accelerate: prepared objects are watched, logged values recorded, and state is saved before a stop."""

from __future__ import annotations

import luff
import luff.accelerate
import numpy as np
import pytest
import torch
from acc import fit, prepared
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState


@pytest.fixture(autouse=True)
def _fresh():
    yield
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


def gradients(session):
    return [
        {
            name.removeprefix("gradient/Sequential_"): v
            for name, v in step.values.items()
            if "gradient/" in name
        }
        for step in session.train()
        if any("gradient/" in name for name in step.values)
    ]


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"mixed_precision": "bf16"}])
def test_losses_and_gradients_are_those_that_the_updates_used(fake, settings):
    accelerator = Accelerator(cpu=True, **settings)
    parts = prepared(accelerator)
    with luff.accelerate.attach(accelerator, run="/nowhere") as hook:
        losses, used = fit(accelerator, *parts, clip=0.05)
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in fake.train()] == pytest.approx(losses)
    found = gradients(fake)
    assert len(found) == len(used) == 8 // settings.get("gradient_accumulation_steps", 1)
    for step, expected in zip(found, used, strict=True):
        assert step.keys() == expected.keys()
        for name, gradient in expected.items():
            np.testing.assert_array_equal(step[name], gradient)
    assert hook.guard.first == {}


def test_scaled_gradients_are_recorded_unscaled(fake):
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    parts = prepared(accelerator)
    with luff.accelerate.attach(accelerator, run="/nowhere"):
        losses, used = fit(accelerator, *parts)
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in fake.train()] == pytest.approx(losses)
    for step, expected in zip(gradients(fake), used, strict=True):
        for name, gradient in expected.items():
            np.testing.assert_array_equal(step[name], gradient / 1024)


def test_what_is_logged_is_scalars(fake):
    accelerator = Accelerator(cpu=True)
    parts = prepared(accelerator)
    with luff.accelerate.attach(accelerator, run="/nowhere"):
        losses, _ = fit(accelerator, *parts)
    found = [step.scalars["scalar/train/loss"] for step in fake.steps if "scalar/train/loss" in step.scalars]
    assert found == losses[: len(found)]
    assert len(found) >= len(losses) - 1


def test_a_tracker_opens_the_run_and_ends_it(fake):
    accelerator = Accelerator(cpu=True, log_with=luff.accelerate.Tracker("/nowhere"))
    accelerator.init_trackers("project", {"lr": 0.1})
    losses, _ = fit(accelerator, *prepared(accelerator))
    assert accelerator.get_tracker("luff", unwrap=True).guard.first == {}
    accelerator.end_training()
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in fake.train()] == losses
    assert fake.closed == int(luff._codes.EndReason.COMPLETED)


def test_state_is_saved_before_a_finding_stops_the_loop(fake, tmp_path):
    fake.stop_after = 3
    accelerator = Accelerator(cpu=True)
    parts = prepared(accelerator)
    seen = []
    luff.accelerate.attach(
        accelerator, run="/nowhere", checkpoint=tmp_path / "stopped", on_stop=lambda: seen.append(True)
    )
    with pytest.raises(luff.StopTraining):
        fit(accelerator, *parts)
    assert seen == [True]
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir())[0] == "model.safetensors"
    kept = [p.clone() for p in parts[0].parameters()]
    with torch.no_grad():
        for p in parts[0].parameters():
            p.zero_()
    accelerator.load_state(str(tmp_path / "stopped"))
    assert all(torch.equal(a, b) for a, b in zip(kept, parts[0].parameters(), strict=True))


def test_without_a_model_it_says_what_to_do():
    with pytest.raises(luff.LuffError, match="prepare"):
        luff.accelerate.attach(Accelerator(cpu=True), run="/nowhere")
