"""Lightning's trainer with Luff's call-back: steps, modes, values, metrics, stops."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import luff
import luff.lightning
import luff.torch
import numpy as np
import pytest
import torch
from lit import Net, loader, trainer
from luff._codes import Mode
from luff.lightning import _trainers

TRAIN, EVAL, PREDICT = int(Mode.TRAIN), int(Mode.EVAL), int(Mode.PREDICT)


def test_steps_and_modes_are_the_trainers(fake):
    callback = luff.lightning.Callback("/nowhere")
    fit = trainer(callback, num_sanity_val_steps=2)
    model = Net()
    fit.fit(model, loader(), loader(32, 1))
    fit.test(model, loader(16, 2), verbose=False)
    fit.predict(model, loader(16, 2))
    callback.close()
    modes = [step.mode for step in fake.steps]
    assert modes == [EVAL] * 2 + ([TRAIN] * 4 + [EVAL] * 2) * 2 + [EVAL] + [PREDICT]
    assert [step.update for step in fake.train()] == list(range(8))
    assert [step.global_step for step in fake.steps] == list(range(len(modes)))
    assert callback.hook.guard.first == {}


def test_losses_and_gradients_are_those_that_the_update_used(fake):
    callback = luff.lightning.Callback("/nowhere")
    model = Net()
    trainer(callback, gradient_clip_val=0.1, accumulate_grad_batches=2, num_sanity_val_steps=0).fit(
        model, loader(), loader(16, 1)
    )
    callback.close()
    steps = fake.train()
    assert [step.scalars["CrossEntropyLoss_output_0"] for step in steps] == model.losses
    updates = [step for step in steps if "gradient/Net_net.0.weight" in step.values]
    assert len(updates) == len(model.used) == 4
    for step, used in zip(updates, model.used, strict=True):
        for name, gradient in used.items():
            np.testing.assert_array_equal(step.values[f"gradient/Net_{name}"], gradient)
        total = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in used.values()))
        assert total <= 0.1 + 1e-6


def test_metrics_that_are_logged_are_scalars(fake):
    callback = luff.lightning.Callback("/nowhere")
    model = Net()
    fit = trainer(callback, num_sanity_val_steps=2)
    fit.fit(model, loader(), loader(32, 1))
    callback.close()
    assert [step.scalars.get("scalar/train_loss_step") for step in fake.train()] == model.losses
    epochs = [
        step.scalars["scalar/train_loss_epoch"]
        for step in fake.steps
        if "scalar/train_loss_epoch" in step.scalars
    ]
    assert epochs == pytest.approx([np.mean(model.losses[:4]), np.mean(model.losses[4:])])
    values = [step.scalars["scalar/val_loss"] for step in fake.steps if "scalar/val_loss" in step.scalars]
    assert len(values) == 2
    assert values[-1] == fit.callback_metrics["val_loss"].item()


def test_a_finding_stops_the_trainer_by_its_own_flag(fake, tmp_path):
    fake.stop_after = 3
    ended, seen = [], []
    callback = luff.lightning.Callback(
        "/nowhere", checkpoint=tmp_path / "stopped.ckpt", on_stop=lambda: seen.append(fit.should_stop)
    )

    class Tail(Net):
        def on_fit_end(self):
            ended.append(self.trainer.global_step)

    model = Tail()
    fit = trainer(callback, min_epochs=2, max_epochs=5)
    with pytest.raises(luff.StopTraining) as stopped:
        fit.fit(model, loader())
    assert stopped.value.code == 76
    assert len(model.losses) == 3
    assert seen == [True]
    assert ended == [3], "Lightning has ended its loop"
    assert fit.state.finished
    assert torch.load(tmp_path / "stopped.ckpt", weights_only=False)["global_step"] == 3
    assert fake.closed == int(luff._codes.EndReason.STOPPED)


def test_a_lowered_rate_outlives_the_scheduler(fake):
    """The scheduler computes each epoch's rate from the initial rate, and has not
    stepped when the rate is lowered.
    """

    class Scheduled(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)]

    fake.action, fake.action_after = (7, "lower_lr", '{"factor": 0.5}', "because"), 2
    model = Scheduled()
    fit = trainer(luff.lightning.Callback("/nowhere", correct=luff.corrections.Corrections(lower_lr=True)))
    fit.fit(model, loader())
    assert fake.done == [(7, True)]
    assert [step.scalars["optimizer/SGD.group0.lr"] for step in fake.train()] == [0.1] * 2 + [0.05] * 6


def test_a_training_goes_on_in_its_run(tmp_path):
    """It continues from Lightning's own checkpoint, and so do the counts of steps and updates."""
    first = luff.lightning.Callback(tmp_path / "run")
    fit = trainer(first, max_epochs=1)
    fit.fit(Net(), loader())
    fit.save_checkpoint(tmp_path / "one.ckpt")
    first.close()
    beside = luff.lightning.Callback(tmp_path / "run")
    with pytest.warns(UserWarning, match="holds a run already"):
        trainer(beside, max_epochs=1).fit(Net(), loader())
    beside.close()
    assert beside.hook.run == str(tmp_path / "run-2")
    second = luff.lightning.Callback(tmp_path / "run", resume=True)
    trainer(second, max_epochs=2).fit(Net(), loader(), ckpt_path=tmp_path / "one.ckpt")
    second.close()
    with luff.open_trial(tmp_path / "run") as trial:
        assert [trial.step_info(step)["update"] for step in trial.steps("TRAIN")] == list(range(8))


def test_tensors_are_taken_at_every_fiftieth_step_and_numbers_at_every(tmp_path):
    for name, options, wanted in (("by default", {}, [0]), ("asked", {"save_interval": 4}, [0, 4, 8])):
        callback = luff.lightning.Callback(tmp_path / name, **options)
        trainer(callback, max_epochs=3, num_sanity_val_steps=0).fit(Net(), loader())
        callback.close()
        with luff.open_trial(tmp_path / name) as trial:
            steps = {tensor: trial.tensor(tensor).steps("TRAIN") for tensor in trial.tensors()}
            for tensor in ("Net_net.0.weight", "Net_net.3.bias", "gradient/Net_net.0.weight"):
                assert steps[tensor] == wanted
            assert [tensor for tensor in steps if "loss" in tensor.lower() and "/" not in tensor] == [
                "CrossEntropyLoss_output_0"
            ]
            assert trial.tensor("CrossEntropyLoss_output_0").value_steps("TRAIN") == wanted
            for scalar in ("CrossEntropyLoss_output_0", "scalar/train_loss_step", "optimizer/SGD.group0.lr"):
                assert trial.scalars(scalar, "TRAIN")["mode_step"].tolist() == list(range(12))


def test_what_a_subclass_adds_is_called(fake):
    seen = []

    class More(luff.lightning.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
            seen.append(batch_idx)

    callback = More("/nowhere")
    trainer(callback, max_epochs=1).fit(Net(), loader())
    callback.close()
    assert seen == [0, 1, 2, 3]
    assert len(fake.train()) == 4
    assert callback.hook.guard.first == {}


def test_evaluations_of_several_calls_are_one_step(fake):
    class Parts(Net):
        def validation_step(self, batch, batch_idx):
            hidden = self.net[0](batch[0])
            self.log("val_loss", self.loss(self.net[3](torch.tanh(hidden)), batch[1]))

    callback = luff.lightning.Callback("/nowhere")
    trainer(callback, num_sanity_val_steps=0, max_epochs=1).fit(Parts(), loader(32), loader(32, 1))
    callback.close()
    evaluations = [step for step in fake.steps if step.mode == EVAL]
    assert len(evaluations) == 2
    assert all("CrossEntropyLoss_output_0" in step.scalars for step in evaluations)


def test_the_call_back_goes_to_other_processes_without_its_run(fake):
    callback = luff.lightning.Callback("/nowhere")
    trainer(callback, max_epochs=1).fit(Net(), loader())
    assert callback.hook is not None
    assert pickle.loads(pickle.dumps(callback)).hook is None


def test_the_loop_after_the_trainer_is_plain_torch(fake):
    """Steps end with their updates again."""
    callback = luff.lightning.Callback("/nowhere")
    model = Net()
    trainer(callback, max_epochs=1, num_sanity_val_steps=0).fit(model, loader(32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader(32):
        optimizer.zero_grad()
        model.loss(model(x), y).backward()
        optimizer.step()
    callback.close()
    assert [step.mode for step in fake.steps] == [TRAIN] * 4


@pytest.fixture
def supervised(monkeypatch, tmp_path):
    """As under ``luff run``: every trainer gets a call-back and records into the supervisor's run."""
    monkeypatch.setenv("LUFF_SESSION", json.dumps({"run": str(tmp_path / "run"), "config": {}}))
    monkeypatch.setattr(_trainers, "_watching_all", False)
    luff.torch.attach_to_all()
    luff.lightning.attach_to_all()


def test_what_is_only_evaluated_leaves_no_run(supervised, tmp_path):
    fit = trainer()
    fit.validate(Net(), loader(), verbose=False)
    fit.predict(Net(), loader())
    assert not (tmp_path / "run").exists()
    fit.fit(Net(), loader())
    assert (tmp_path / "run").exists()
    assert sum(isinstance(callback, luff.lightning.Callback) for callback in fit.callbacks) == 1


def test_an_interrupted_training_ends_by_a_signal(fake):
    """Lightning turns Ctrl-C into an exit with code 1."""

    class Interrupted(Net):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        trainer(luff.lightning.Callback("/nowhere")).fit(Interrupted(), loader())
    assert fake.closed == int(luff._codes.EndReason.SIGNAL)
    assert len(fake.train()) == 3


def test_the_other_package_of_the_same_name(tmp_path):
    """`pytorch_lightning` has its own classes."""
    if importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("no pytorch_lightning")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, warnings; warnings.filterwarnings('ignore')\n"
        "import torch, pytorch_lightning as pl\n"
        "from torch import nn\n"
        "class N(pl.LightningModule):\n"
        "    def __init__(self): super().__init__(); self.l = nn.Linear(4, 2)\n"
        "    def training_step(self, b, i): return self.l(b[0]).square().mean()\n"
        "    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)\n"
        "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), 8)\n"
        "quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)\n"
        "trainer = pl.Trainer(max_epochs=1, accelerator='cpu', **quiet)\n"
        "trainer.fit(N(), data)\n"
        "assert [type(c).__name__ for c in trainer.callbacks].count('Callback') == 1\n"
        "assert 'lightning' not in sys.modules\n"
    )
    folder = Path(luff.__file__).resolve().parent
    path = os.pathsep.join([str(folder / "_bootstrap"), str(Path(luff.__file__).parent.parent)])
    env = {**os.environ, "PYTHONPATH": path}
    env["LUFF_SESSION"] = json.dumps({"run": str(tmp_path / "run"), "config": {}})
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with luff.open_trial(tmp_path / "run") as trial:
        assert len(trial.steps("TRAIN")) == 4


def test_an_error_inside_luff_never_reaches_the_trainer(fake, monkeypatch):
    from luff.torch.loop._writer import TensorWriter

    def broken(*_):
        raise RuntimeError("inside")

    monkeypatch.setattr(TensorWriter, "save_scalar", broken)
    callback = luff.lightning.Callback("/nowhere")
    model = Net()
    trainer(callback).fit(model, loader())
    assert len(model.losses) == 8
    assert callback.hook.guard.first == {"log": "RuntimeError: inside"}
