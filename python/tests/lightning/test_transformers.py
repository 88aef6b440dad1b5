"""The Trainer of Transformers with Luff's call-back: steps, modes, values, metrics, stops."""

from __future__ import annotations

import luff
import luff.transformers
import numpy as np
import pytest
from hf import Rows, trainer
from luff._codes import EndReason, Mode
from transformers import Trainer, TrainerCallback

TRAIN, EVAL, PREDICT = int(Mode.TRAIN), int(Mode.EVAL), int(Mode.PREDICT)


class Look(TrainerCallback):
    """Keeps the gradients that each update uses."""

    def __init__(self):
        self.used = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.used.append({name: p.grad.clone().numpy() for name, p in model.named_parameters()})


def test_steps_and_modes_are_the_trainers(fake, tmp_path):
    callback = luff.transformers.Callback("/nowhere")
    train = trainer(
        tmp_path, callback, evaluate=Rows(16, 1), eval_strategy="epoch", gradient_accumulation_steps=2
    )
    train.train()
    train.evaluate()
    train.predict(Rows(8, 2))
    callback.close()
    modes = [step.mode for step in fake.steps]
    assert modes == ([TRAIN] * 4 + [EVAL] * 2) * 2 + [EVAL] * 2 + [PREDICT]
    assert [step.update for step in fake.train()] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert callback.hook.guard.first == {}


def test_gradients_are_those_that_the_update_used(fake, tmp_path):
    look = Look()
    callback = luff.transformers.Callback("/nowhere")
    trainer(tmp_path, callback, look, gradient_accumulation_steps=2, max_grad_norm=0.1).train()
    callback.close()
    updates = [step for step in fake.train() if any(name.startswith("gradient/") for name in step.values)]
    assert len(updates) == len(look.used) == 4
    for step, used in zip(updates, look.used, strict=True):
        for name, gradient in used.items():
            if name != "lm_head.weight":  # shared with the embedding
                np.testing.assert_array_equal(step.values[f"gradient/GPT2LMHeadModel_{name}"], gradient)


def test_losses_are_means_over_the_targets(fake, tmp_path):
    """The Trainer divides by the number of labels, but the first label of a row is not a target: 12 labels, 11
    targets.
    """
    targets = 11 / 12
    callback = luff.transformers.Callback("/nowhere")
    train = trainer(
        tmp_path, callback, evaluate=Rows(16, 1), eval_strategy="epoch", gradient_accumulation_steps=2
    )
    train.train()
    callback.close()
    losses = [step.scalars["CrossEntropyLoss_output_0"] for step in fake.train()]
    logged = [entry["loss"] for entry in train.state.log_history if "loss" in entry]
    assert np.mean(np.reshape(losses, (-1, 2)), axis=1) * targets == pytest.approx(logged, rel=1e-5)
    evaluations = [step.scalars["CrossEntropyLoss_output_0"] for step in fake.steps if step.mode == EVAL]
    logged = [entry["eval_loss"] for entry in train.state.log_history if "eval_loss" in entry]
    assert np.mean(np.reshape(evaluations, (-1, 2)), axis=1) * targets == pytest.approx(logged, rel=1e-5)


def test_what_the_trainer_logs_is_scalars(fake, tmp_path):
    callback = luff.transformers.Callback("/nowhere")
    train = trainer(tmp_path, callback, evaluate=Rows(16, 1), eval_strategy="epoch")
    train.train()
    callback.close()
    for name in ("loss", "grad_norm", "learning_rate", "eval_loss", "train_loss"):
        logged = [entry[name] for entry in train.state.log_history if name in entry]
        found = [step.scalars[f"scalar/{name}"] for step in fake.steps if f"scalar/{name}" in step.scalars]
        assert found == logged, name
    assert all("scalar/loss" in step.scalars for step in fake.train())


def test_generating_is_one_step_for_each_batch(fake, tmp_path):
    class Generating(Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            made = model.generate(
                inputs["input_ids"][:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0
            )
            return None, made, inputs["labels"]

    callback = luff.transformers.Callback("/nowhere")
    train = trainer(tmp_path, callback, cls=Generating)
    train.train()
    train.predict(Rows(16, 2))
    callback.close()
    assert [step.mode for step in fake.steps] == [TRAIN] * 8 + [PREDICT] * 2


def test_a_finding_stops_the_trainer_by_its_own_flag(fake, tmp_path):
    fake.stop_after = 3
    seen = []
    callback = luff.transformers.Callback(
        "/nowhere", checkpoint=True, on_stop=lambda: seen.append(train.control.should_training_stop)
    )
    train = trainer(tmp_path, callback)
    with pytest.raises(luff.StopTraining) as stopped:
        train.train()
    assert stopped.value.code == 76
    assert seen == [True]
    assert train.state.global_step == 3
    assert not train.is_in_train, "the Trainer has ended its loop"
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()
    assert fake.closed == int(EndReason.STOPPED)


def test_a_lowered_rate_outlives_the_scheduler(fake, tmp_path):
    fake.action, fake.action_after = (7, "lower_lr", '{"factor": 0.5}', "because"), 2
    correct = luff.corrections.Corrections(lower_lr=True)
    callback = luff.transformers.Callback("/nowhere", correct=correct)
    trainer(tmp_path, callback, lr_scheduler_type="constant").train()
    callback.close()
    assert fake.done == [(7, True)]
    rates = [step.scalars["optimizer/AdamW.group0.lr"] for step in fake.train()]
    assert rates == pytest.approx([3e-3] * 2 + [1.5e-3] * 6)


def test_a_training_goes_on_in_its_run(tmp_path):
    first = luff.transformers.Callback(tmp_path / "run")
    trainer(tmp_path / "out", first, save_strategy="epoch", num_train_epochs=1).train()
    first.close()
    beside = luff.transformers.Callback(tmp_path / "run")
    with pytest.warns(UserWarning, match="holds a run already"):
        trainer(tmp_path / "other", beside).train()
    beside.close()
    assert beside.hook.run == str(tmp_path / "run-2")
    second = luff.transformers.Callback(tmp_path / "run", resume=True)
    trainer(tmp_path / "out", second, num_train_epochs=2).train(resume_from_checkpoint=True)
    second.close()
    with luff.open_trial(tmp_path / "run") as trial:
        assert [trial.step_info(step)["update"] for step in trial.steps("TRAIN")] == list(range(8))


def test_an_error_inside_luff_never_reaches_the_trainer(fake, tmp_path, monkeypatch):
    from luff.torch.loop._writer import TensorWriter

    def broken(*_):
        raise RuntimeError("inside")

    monkeypatch.setattr(TensorWriter, "save_scalar", broken)
    callback = luff.transformers.Callback("/nowhere")
    train = trainer(tmp_path, callback)
    train.train()
    assert train.state.global_step == 8
    assert callback.hook.guard.first == {"log": "RuntimeError: inside"}
