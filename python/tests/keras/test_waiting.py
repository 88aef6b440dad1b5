"""Steps of which only numbers are recorded wait for others, which makes no difference in the run."""

from __future__ import annotations

import gc

import keras
import luff
import luff.keras
import luff.tensorflow
import numpy as np
import pytest
import tensorflow as tf
from luff.keras._held import HeldSteps


@pytest.fixture
def waited(monkeypatch):
    """Counts the steps that have waited."""
    held = []
    hold = HeldSteps.hold

    def count(self, metrics):
        step = self.clock.global_step
        waits = hold(self, metrics)
        if waits:
            held.append(step)
        return waits

    monkeypatch.setattr(HeldSteps, "hold", count)
    return held


def fit(data, hook, epochs=3, callbacks=()):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu", name="first"), keras.layers.Dense(10, name="last")]
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.97)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule, name="adam"), loss, metrics=["accuracy"])
    x, y = data
    options = {"batch_size": 24, "epochs": epochs, "verbose": 0}  # the last batch of an epoch is smaller
    model.fit(x, y, validation_data=(x[:64], y[:64]), callbacks=[hook, *callbacks], **options)
    return [weight.tobytes() for weight in model.get_weights()]


def numbers(path):
    with luff.open_trial(path) as trial:
        names = [name for name in trial.tensors() if len(trial.scalars(name)["value"])]
        scalars = {name: {k: v.tolist() for k, v in trial.scalars(name).items()} for name in names}
        steps = [trial.step_info(step) for step in trial.steps()]
        events = [(event["step"], event["kind"], event["subject"]) for event in trial.events()]
        assert trial.gaps() == []
        return scalars, [(s["mode"], s["mode_step"], s["update"]) for s in steps], events


def test_the_run_is_the_same_as_without_waiting(tmp_path, data, waited):
    every = {"collections": {"weights": {"forms": ["summary"], "save": {"save_interval": 1}}}}
    with luff.keras.Callback(tmp_path / "at_once", **every) as hook:
        expected = fit(data, hook)
    assert not waited
    with luff.keras.Callback(tmp_path / "waits") as hook:
        assert fit(data, hook) == expected
    assert len(waited) > 50
    assert hook.health()["hook_errors"] == 0
    scalars, steps, events = numbers(tmp_path / "waits")
    assert {"CrossEntropyLoss_output_0", "accuracy", "optimizer/adam.group0.lr"} <= set(scalars)
    assert (scalars, steps, events) == numbers(tmp_path / "at_once")
    with luff.open_trial(tmp_path / "waits") as trial, luff.open_trial(tmp_path / "at_once") as other:
        names = [name for name in trial.tensors() if name.startswith(("gradient/", "first/"))]
        assert len(names) == 6
        for name in names:
            steps = trial.tensor(name).steps("TRAIN")
            assert steps == list(range(0, 81, 50))
            for step in steps:
                assert trial.tensor(name).summary(step, "TRAIN") == other.tensor(name).summary(step, "TRAIN")
        ends = [trial.step_info(step)["wall_unix_ns"] for step in trial.steps()]
        lasted = [trial.step_info(step)["duration_ns"] for step in trial.steps()]
        assert ends == sorted(ends) and len(set(ends)) == len(ends)
        assert all(0 < duration < 60e9 for duration in lasted)


def test_what_users_give_comes_in_its_step(tmp_path, data, waited):
    hook = luff.keras.Callback(tmp_path / "run")

    class Gives(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 13:
                hook.save_scalar("mine", hook.steps.clock.mode_steps[1])

    with hook:
        fit(data, hook, 2, [Gives()])
    assert waited
    with luff.open_trial(tmp_path / "run") as trial:
        mine = trial.scalars("scalar/mine", "TRAIN")
        assert mine["mode_step"].tolist() == mine["value"].tolist() == [13, 40]
        assert len(trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"]) == 54
        assert trial.gaps() == []


def test_flush_leaves_none_waiting(tmp_path, data, waited):
    hook = luff.keras.Callback(tmp_path / "run")
    seen = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch in (15, 23):
                assert hook.flush()
                with luff.open_trial(tmp_path / "run") as trial:
                    seen.append((hook.steps.clock.mode_steps[1], len(trial.steps("TRAIN"))))

    with hook:
        fit(data, hook, 1, [Reads()])
    assert waited
    assert [steps for steps, _ in seen] == [steps for _, steps in seen] == [16, 24]


class Loop:
    """A compiled step that updates only if requested."""

    def __init__(self):
        keras.utils.set_random_seed(4)
        self.model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, name="dense")])
        self.optimizer = keras.optimizers.SGD(0.05)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.step = tf.function(self._step)

    def _step(self, x, y, update=True):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        if update:
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def train(self, data, steps, updates=lambda step: True):
        x, y = data
        found = []
        for step in range(steps):
            rows = slice(step % 10 * 32, step % 10 * 32 + 32)
            found.append(float(self.step(tf.constant(x[rows]), tf.constant(y[rows]), updates(step))))
        return found


def test_a_loop_waits_too(tmp_path, data, waited):
    with luff.tensorflow.attach(run=tmp_path / "run") as hook:
        found = Loop().train(data, 60)
        assert hook.health()["hook_errors"] == 0
    assert len(waited) > 30
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"].tolist() == found
        assert [trial.step_info(step)["update"] for step in trial.steps()] == list(range(60))
        assert trial.tensor("gradient/dense/weights/kernel").steps("TRAIN") == list(range(0, 60, 50))
        assert trial.gaps() == []


def test_updates_are_counted_where_some_steps_have_none(tmp_path, data, waited):
    # more consecutive equal steps than are needed before steps wait
    updates = [step % 24 != 23 for step in range(80)]
    with luff.tensorflow.attach(run=tmp_path / "run") as hook:
        found = Loop().train(data, 80, lambda step: updates[step])
        assert hook.health()["hook_errors"] == 0
    assert waited
    with luff.open_trial(tmp_path / "run") as trial:
        before = [sum(updates[:step]) for step in range(80)]
        assert [trial.step_info(step)["update"] for step in trial.steps()] == before
        told = trial.scalars("CrossEntropyLoss_output_0", "TRAIN")
        missing = set(range(80)) - set(told["mode_step"].tolist())
        assert len(missing) <= 2 and not any(updates[step] for step in missing)
        assert told["value"].tolist() == [found[step] for step in told["mode_step"]]
        assert sum(gap["count"] for gap in trial.gaps()) == len(missing)


def test_a_model_that_is_gone_when_its_steps_are_recorded(tmp_path, data, waited):
    x, y = data[0][:32], data[1][:32]
    first = keras.optimizers.SGD(0.01)
    with luff.tensorflow.attach(run=tmp_path / "run") as hook:
        for optimizer in (first, keras.optimizers.Adam(0.01)):
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(
                optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
            )
            for _ in range(28):
                model.train_on_batch(x, y)
        del model, optimizer
        gc.collect()
        assert len(waited) > 20
    assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        updates = [event["subject"] for event in trial.events() if event["kind"] == "optimizer_step"]
        assert updates == [0] * 28 + [1] * 28
        assert len(trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"]) == 56
        assert trial.gaps() == []


def test_two_models_in_turns(tmp_path, data, waited):
    x, y = data[0][:32], data[1][:32]
    models = []
    for seed in (0, 1):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile(
            keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        models.append(model)
    expected = []
    with luff.tensorflow.attach(run=tmp_path / "run") as hook:
        for step in range(48):
            model = models[step // 12 % 2]
            model.reset_metrics()
            expected.append(float(model.train_on_batch(x, y)))
        assert hook.health()["hook_errors"] == 0
    assert waited
    with luff.open_trial(tmp_path / "run") as trial:
        found = trial.scalars("CrossEntropyLoss_output_0", "TRAIN")
        assert found["mode_step"].tolist() == list(range(48))
        np.testing.assert_allclose(found["value"], expected, rtol=1e-6)
        assert [event["kind"] for event in trial.events()].count("optimizer_step") == 48
