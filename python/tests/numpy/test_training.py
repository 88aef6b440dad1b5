"""Loops written in NumPy: what a step records, and whole programs under `luff run`."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import luff
import luff.numpy
import numpy as np
import pytest
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError

#: Two layers on rows of two kinds; the lines that attach Luff, the rate and the lines of a step are inserted.
PROGRAM = """
import numpy as np

rng = np.random.default_rng(0)
rows = rng.normal(size=(512, 8))
kinds = (rows[:, 0] * rows[:, 1] > 0).astype(int)
weights = {{
    "hidden.weight": rng.normal(size=(8, 32)) * np.sqrt(2 / 8), "hidden.bias": np.zeros(32),
    "head.weight": rng.normal(size=(32, 2)) * np.sqrt(2 / 32), "head.bias": np.zeros(2),
}}
settings = {{"lr": {rate}}}
{attach}

def loss_and_gradients(x, y):
    hidden = np.maximum(x @ weights["hidden.weight"] + weights["hidden.bias"], 0)
    logits = hidden @ weights["head.weight"] + weights["head.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y] + 1e-12).mean()
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = p @ weights["head.weight"].T * (hidden > 0)
    return loss, {{
        "hidden.weight": x.T @ back, "hidden.bias": back.sum(0), "head.weight": hidden.T @ p, "head.bias": p.sum(0),
    }}

def update(gradients):
    for name, gradient in gradients.items():
        weights[name] -= settings["lr"] * gradient

for index in range({steps}):
    batch = rng.integers(0, 512, 32)
    x, y = rows[batch], kinds[batch]
{step}
print(sum(float(np.abs(value).sum()) for value in weights.values()).hex())
"""
ALONE = """
    update(loss_and_gradients(x, y)[1])
"""
WATCHED = """
    with hook.step() as step:
        loss, gradients = loss_and_gradients(x, y)
        step.loss(loss)
        step.gradients(gradients)
        update(gradients)
"""
FORGOTTEN = WATCHED.replace("        update(gradients)\n", "")


def program(run: str, step: str = WATCHED, rate: float = 0.1, steps: int = 150) -> str:
    attach = f"import luff.numpy\nhook = luff.numpy.attach(weights, settings, run={run!r})"
    return PROGRAM.format(attach="" if step == ALONE else attach, rate=rate, steps=steps, step=step)


def train(hook: luff.numpy.Hook, weights: dict[str, Any], steps: int = 3) -> None:
    for index in range(steps):
        with hook.step() as step:
            step.loss(1.0 / (index + 1))
            step.gradients({name: np.full_like(value, index) for name, value in weights.items()})
            for value in weights.values():
                value += 1


def test_a_step_records_weights_as_it_found_them_and_what_it_computed(tmp_path):
    weights = {"dense.weight": np.zeros((2, 3)), "dense.bias": np.zeros(3, dtype=np.float32)}
    with luff.numpy.attach(
        weights, {"lr": 0.5, "kind": "plain"}, run=tmp_path / "run", save_interval=1, save_all=True
    ) as hook:
        train(hook, weights)
        with hook.step("EVAL") as step:
            step.loss(2.0)
            step.tensor("x", np.arange(4), "input")
        hook.save_scalar("rows", 32)
        with hook.step(updates=False):
            luff.numpy.save_tensor("mine", np.ones(2))
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2, 3]
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 1, 2, 3, 3]
        np.testing.assert_array_equal(trial.tensor("dense.weight").value(2, mode="TRAIN"), np.full((2, 3), 2))
        assert trial.tensor("dense.bias").role == "bias"
        np.testing.assert_array_equal(trial.tensor("gradient/dense.bias").value(1, mode="TRAIN"), np.ones(3))
        assert trial.scalars("loss", "EVAL")["value"].tolist() == [2.0]
        assert trial.scalars("optimizer/numpy.group0.lr")["value"].tolist() == [0.5] * 3
        assert trial.scalars("scalar/rows")["mode_step"].tolist() == [3]
        assert trial.tensor("x").role == "input"
        assert trial.gaps() == []


def test_a_step_that_raises_is_dropped(tmp_path):
    with luff.numpy.attach({"w": np.zeros(2)}, run=tmp_path / "run") as hook:
        with pytest.raises(ZeroDivisionError), hook.step() as step:
            step.loss(1 / 0)
        with hook.step() as outer:
            outer.loss(1.0)
            with hook.step("EVAL") as inner:
                inner.loss(2.0)
            outer.loss(3.0, "late")  # this step has ended, since another one began
    with luff.open_trial(tmp_path / "run") as trial:
        assert len(trial.steps()) == 2
        assert "late" not in trial.tensors()


def test_mistakes_are_told_or_counted(tmp_path):
    with luff.numpy.attach({"w": [1.0, object()]}, run=tmp_path / "run") as hook:
        with pytest.raises(InvalidArgumentError, match="no mode is called 'training'"):
            hook.step("training")
        with hook.step() as step:
            with pytest.raises(InvalidArgumentError, match="no role is called 'inputs'"):
                step.tensor("x", np.zeros(2), "inputs")
            step.loss([1.0, 2.0])
        assert hook.health()["hook_errors"] == 1
    with pytest.raises(InvalidArgumentError, match="weights is a list; expected arrays by name"):
        luff.numpy.attach([np.zeros(2)], run=tmp_path / "other")
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0]
        assert {gap["reason"] for gap in trial.gaps()} == {"unsupported", "hook error"}


def test_a_correction_of_the_learning_rate_is_the_loop_s_next_rate(luff_run, tmp_path):
    (tmp_path / "luff.toml").write_text(
        '[[action]]\nkind = "lower_lr"\nrules = ["NonFinite"]\ndry_run = false\nfactor = 0.5\n'
    )
    step = WATCHED.replace("step.loss(loss)", "step.loss(loss if index != 5 else float('nan'))")
    script = "import luff\nluff.corrections.accept(lower_lr=True)\n" + program("run", step, steps=10**9)
    script = script.replace("batch = rng", "if settings['lr'] == 0.05: break\n    batch = rng")
    _, trial = luff_run(script, "--config", "luff.toml")
    with trial:
        assert set(trial.scalars("optimizer/numpy.group0.lr")["value"].tolist()) == {0.1}


def test_the_learning_rate_can_be_lowered(tmp_path):
    settings = {"lr": 0.5}
    with luff.numpy.attach({}, settings, run=tmp_path / "run", correct=Corrections(lower_lr=True)) as hook:
        hook._lower_lr(0.5)
        assert settings == {"lr": 0.25}
    with luff.numpy.attach({}, run=tmp_path / "other") as hook:
        with pytest.raises(LookupError, match="no learning rate"):
            hook._lower_lr(0.5)


def test_results_are_those_of_the_training_alone(tmp_path):
    def result(text: str) -> str:
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return done.stdout

    assert result(program("", ALONE)) == result(program(str(tmp_path / "run")))


@pytest.mark.parametrize(
    ("step", "rate", "named"),
    [
        (WATCHED, 0.1, "no findings"),
        (WATCHED, 500.0, "STOP WeightUpdateRatio"),
        (FORGOTTEN, 0.1, "STOP UnchangedTensor"),
    ],
    ids=["healthy", "rate too high", "update forgotten"],
)
def test_a_program_under_luff_run(luff_run, tmp_path, step, rate, named):
    done, trial = luff_run(program(str(tmp_path / "other"), step, rate))
    assert named in done.stderr.splitlines()[-1]
    with trial:
        assert trial.steps("TRAIN")[-1] == 149
    assert not (tmp_path / "other").exists()


def test_a_finding_stops_the_training_after_a_step(luff_run):
    endless = WATCHED.replace("step.loss(loss)", "step.loss(loss if index < 5 else float('nan'))")
    done, trial = luff_run(program("run", endless, steps=10**9), "--on-finding", "stop", expect=76)
    assert "stopped by NonFinite" in done.stderr.splitlines()[-1]
    with trial:
        assert trial.outcome == "stopped"


def test_a_run_ends_with_the_last_thing_that_holds_its_hook(tmp_path):
    def train_and_forget():
        weights = {"w": np.ones(3)}
        hook = luff.numpy.attach(weights, run=tmp_path / "run")
        with hook.step() as step:
            step.loss(1.0)
        return step

    gc.disable()
    try:
        step = train_and_forget()  # a variable of a script keeps the step after its block
        step.loss(2.0)  # belongs to no step
        with luff.open_trial(tmp_path / "run") as trial:
            assert trial.outcome == "completed"
            assert trial.scalars("loss", "TRAIN")["value"].tolist() == [1.0]
    finally:
        gc.enable()
