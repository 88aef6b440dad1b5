"""The user's own training loops: tapes, compiled functions, two replicas."""

from __future__ import annotations

import keras
import luff
import luff.tensorflow
import numpy as np
import pytest
import tensorflow as tf


class Loop:
    """A model, and a step that trains it."""

    def __init__(self, compiled=None, own_loss=False):
        keras.utils.set_random_seed(5)
        layers = [
            keras.layers.Dense(16, activation="relu", name="first"),
            keras.layers.BatchNormalization(name="norm"),
        ]
        self.model = keras.Sequential([*layers, keras.layers.Dense(10, name="last")])
        self.optimizer = keras.optimizers.Adam(0.01)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.traces = 0
        self.own_loss = own_loss
        self.run = self.step if compiled is None else tf.function(self.step, jit_compile=compiled == "xla")

    def step(self, x, y):
        self.traces += 1
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            loss = self.loss(y, outputs)
            if self.own_loss:
                loss = tf.reduce_mean(tf.square(outputs))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss, gradients[0]

    def train(self, data, steps=4):
        x, y = data
        found = []
        for index in range(steps):
            rows = slice(index * 64, index * 64 + 64)
            loss, gradient = self.run(tf.constant(x[rows]), tf.constant(y[rows]))
            found.append((float(loss), gradient.numpy()))
        return found

    def weights(self):
        return [value.tobytes() for value in self.model.get_weights()]


@pytest.mark.parametrize("compiled", [None, "graph", pytest.param("xla", marks=pytest.mark.thorough)])
def test_a_tape_is_a_step(tmp_path, data, compiled):
    bare, watched = Loop(compiled), Loop(compiled)
    expected = bare.train(data)
    with luff.tensorflow.attach(
        run=tmp_path / "run", collections=["gradients", "weights"], save_interval=1
    ) as hook:
        found = watched.train(data)
        assert hook.health()["hook_errors"] == 0, hook.health()["hook_error_places"]
    assert watched.weights() == bare.weights()
    assert watched.traces == bare.traces
    for one, other in zip(expected, found, strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2, 3]
        assert [trial.step_info(s)["update"] for s in range(4)] == [0, 1, 2, 3]
        assert trial.tensor("first/weights/kernel").value_steps("TRAIN") == [0, 1, 2, 3]
        if compiled == "xla":
            assert [(gap["reason"], gap["count"]) for gap in trial.gaps()] == [("compiled graph", 4)]
            return
        assert trial.gaps() == []
        assert trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"].tolist() == [
            loss for loss, _ in found
        ]
        for step, (_, gradient) in enumerate(found):
            np.testing.assert_array_equal(
                trial.tensor("gradient/first/weights/kernel").value(step, "TRAIN"), gradient
            )


def test_what_is_tape_s_target_is_the_loss_where_no_loss_of_keras_is(tmp_path, data):
    loop = Loop()
    loop.loss = lambda y, outputs: tf.reduce_mean(tf.square(outputs - tf.one_hot(y, 10)))
    with luff.tensorflow.attach(loop.model, run=tmp_path / "run"):
        found = loop.train(data)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.scalars("loss_output_0", "TRAIN")["value"].tolist() == [loss for loss, _ in found]


def test_tapes_that_train_nothing_are_no_steps(tmp_path, data):
    loop = Loop()
    with luff.tensorflow.attach(run=tmp_path / "run"):
        loop.train(data, 2)
        with tf.GradientTape():
            loop.model(data[0][:8])
        loop.train(data, 1)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2]


def test_two_optimizers_in_one_step(tmp_path, data):
    x = tf.constant(data[0][:64])
    one, other = (tf.Variable(tf.ones((64, 4)), name=name) for name in ("one", "other"))
    first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2)
    with luff.tensorflow.attach(run=tmp_path / "run") as hook:
        for _ in range(3):
            with tf.GradientTape(persistent=True) as tape:
                a, b = tf.reduce_mean((x @ one) ** 2), tf.reduce_mean((x @ other) ** 2)
            first.apply_gradients([(tape.gradient(a, one), one)])
            second.apply_gradients([(tape.gradient(b, other), other)])
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2]
        assert {"gradient/weights/one", "gradient/weights/other"} <= set(trial.tensors())
        assert [event["kind"] for event in trial.events()].count("optimizer_step") == 6
        assert [trial.step_info(step)["update"] for step in range(3)] == [0, 1, 2]


REPLICAS = """
import luff, luff._core  # before TensorFlow, unlike everywhere else
import numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras, luff.keras

def train(callbacks):
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8, name="first"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(256, 16)).astype("float32"), random.integers(0, 10, 256)
    history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    return [w.tobytes() for w in model.get_weights()], history.history

hook = luff.keras.Callback("run", collections=["gradients", "weights"], save_interval=1)
watched, bare = train([hook]), train([])
assert watched == bare
assert hook.health()["hook_errors"] == 0, hook.health()
hook.close()
with luff.open_trial("run") as trial:
    assert trial.steps("TRAIN") == list(range(8)) and trial.gaps() == [], trial.gaps()
    kernel, gradient = trial.tensor("first/weights/kernel"), trial.tensor("gradient/first/weights/kernel")
    for step in range(7):
        moved = kernel.value(step) - np.float32(0.1) * gradient.value(step)
        np.testing.assert_allclose(moved, kernel.value(step + 1), rtol=1e-5, atol=1e-7)
    losses = [trial.scalars(f"CrossEntropyLoss_output_{i}", "TRAIN")["value"] for i in (0, 1)]
    mean = np.mean(np.concatenate(losses).reshape(2, 8), axis=0)
    np.testing.assert_allclose(mean[:4].mean(), watched[1]["loss"][0], rtol=1e-5)
"""


def test_two_replicas(script):
    script(REPLICAS)
