"""`luff run` on scripts that never mention Luff: a healthy one, and several faulty ones."""

from __future__ import annotations

import pytest

FIT = """
import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
hidden = keras.layers.Dense(64, activation="relu"{HIDDEN})
model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dropout(0.2), keras.layers.Dense(10{LAST})])
model.compile({OPTIMIZER}, keras.losses.{LOSS})
model.fit(x[:1500], y[:1500], batch_size=32, epochs={EPOCHS}, validation_data=(x[1500:], y[1500:]), verbose=0)
"""
HEALTHY = {
    "{HIDDEN}": "",
    "{LAST}": "",
    "{OPTIMIZER}": "'adam'",
    "{LOSS}": "SparseCategoricalCrossentropy(from_logits=True)",
    "{EPOCHS}": "8",
}


def program(**changes):
    text = FIT
    for name, value in (HEALTHY | {f"{{{key}}}": value for key, value in changes.items()}).items():
        text = text.replace(name, value)
    return text


def leaders(done):
    return [line for line in done.stderr.splitlines() if line.startswith(("luff: WARN", "luff: STOP"))]


def test_a_healthy_training_is_silent(luff_run):
    done, trial = luff_run(program())
    assert "no findings" in done.stderr, done.stderr
    assert len(trial.steps("TRAIN")) == 8 * 47
    assert len(trial.steps("EVAL")) == 8 * 10
    assert trial.outcome == "completed"
    assert len(trial.workers()) == 1


FAULTS = {
    "a learning rate that kills": ({"OPTIMIZER": "keras.optimizers.SGD(30.0)"}, "WeightUpdateRatio"),
    "units that never fire": (
        {"HIDDEN": ", bias_initializer=keras.initializers.Constant(-50.0)"},
        "DeadRelu",
    ),
}
MORE_FAULTS = {
    "a ReLU in place of the softmax": (
        {"LAST": ", activation='relu'", "LOSS": "SparseCategoricalCrossentropy()"},
        "LossInputContract",
    ),
    "dropout behind the last layer": (
        {
            "LAST": "), keras.layers.Dropout(0.5), keras.layers.Softmax(",
            "LOSS": "SparseCategoricalCrossentropy()",
        },
        "LossInputContract",
    ),
    "a model that learns nothing": (
        {"OPTIMIZER": "keras.optimizers.SGD(1e-9)", "EPOCHS": "20"},
        "WeightUpdateRatio",
    ),
    "a learning rate that diverges": (
        {"OPTIMIZER": "keras.optimizers.SGD(1e6)", "HIDDEN": ", use_bias=False"},
        "WeightUpdateRatio",
    ),
}


def named(luff_run, changes, rule):
    done, _ = luff_run(program(**changes))
    assert any(f" {rule}:" in line for line in leaders(done)), done.stderr


@pytest.mark.parametrize(
    "fault", [*list(FAULTS)[:1], *(pytest.param(f, marks=pytest.mark.thorough) for f in list(FAULTS)[1:])]
)
def test_a_fault_is_named(luff_run, fault):
    named(luff_run, *FAULTS[fault])


@pytest.mark.thorough
@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_another_fault_is_named(luff_run, fault):
    named(luff_run, *MORE_FAULTS[fault])


def test_a_loop_and_a_stop(luff_run):
    done, trial = luff_run(
        """
        import tensorflow as tf
        import numpy as np
        x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
        model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(1e18)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - x[:, :1]))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        for index in range(20000):
            step(tf.constant(x))
        print("not stopped")
        """,
        "--on-finding",
        "stop",
        expect=76,
    )
    assert "not stopped" not in done.stdout
    assert "NonFinite" in done.stderr or "ExplodingTensor" in done.stderr
    assert trial.outcome == "stopped"
