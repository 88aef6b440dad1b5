"""Keras on JAX and PyTorch: nothing changes, and the recorded values are right. One process for each backend."""

from __future__ import annotations

import pytest

PROGRAM = """
import os, shutil
import numpy as np, keras
import luff, luff.keras
from keras import layers, optimizers

backend = keras.backend.backend()

class Traced(keras.Sequential):
    traces = 0
    def train_step(self, *arguments):
        self.traces += 1
        return super().train_step(*arguments)

def train(hook=None, optimizer=lambda: optimizers.Adam(0.01), epochs=2, **settings):
    keras.utils.set_random_seed(1)
    inner = [layers.Dense(32, activation="relu", name="first"), layers.Dropout(0.2), layers.BatchNormalization()]
    model = Traced([*inner, layers.Dense(10, name="last")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer(), loss=loss, metrics=["accuracy"], **settings)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(320, 16)).astype("float32"), random.integers(0, 10, 320)
    callbacks = [] if hook is None else [hook]
    history = model.fit(
        x, y, batch_size=64, epochs=epochs, verbose=0, validation_data=(x[:64], y[:64]), callbacks=callbacks
    )
    model.predict(x[:64], verbose=0)
    model.train_on_batch(x[:64], y[:64])
    return [w.tobytes() for w in model.get_weights()], history.history, model.traces

def check(name, **settings):
    bare = train(**settings)
    with luff.keras.Callback(f"run-{name}", collections=["weights", "gradients"], save_interval=1) as hook:
        watched = train(hook, **settings)
        assert hook.health()["hook_errors"] == 0, hook.health()
    assert watched == bare, (name, watched[1:], bare[1:])
    return luff.open_trial(f"run-{name}"), watched[1]

LOSS = "CrossEntropyLoss_output_0"
with check("plain", optimizer=lambda: optimizers.SGD(0.1))[0] as trial:
    assert trial.steps("TRAIN") == list(range(11)) and trial.steps("EVAL") == [0, 1]
    assert trial.steps("PREDICT") == [0, 1]
    assert [trial.step_info(s, "TRAIN")["update"] for s in range(11)] == list(range(11))
    assert trial.gaps() == [], trial.gaps()
    kernel, gradient = trial.tensor("last/weights/kernel"), trial.tensor("gradient/last/weights/kernel")
    for step in range(10):
        moved = kernel.value(step, "TRAIN") - np.float32(0.1) * gradient.value(step, "TRAIN")
        np.testing.assert_allclose(moved, kernel.value(step + 1, "TRAIN"), rtol=1e-5, atol=1e-7)

trial, history = check("adam")
with trial:
    losses = trial.scalars(LOSS, "TRAIN")["value"]
    np.testing.assert_allclose(losses[:5].mean(), history["loss"][0], rtol=1e-5)
    np.testing.assert_allclose(trial.scalars(LOSS, "EVAL")["value"], history["val_loss"], rtol=1e-5)
    assert trial.document("environment")["backend"] == backend

scaled = lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=1024.0)
with check("scaled", optimizer=scaled, epochs=1)[0] as trial, luff.open_trial("run-plain") as plain:
    name = "gradient/last/weights/kernel"
    np.testing.assert_allclose(
        trial.tensor(name).value(0, "TRAIN"), plain.tensor(name).value(0, "TRAIN"), rtol=1e-4, atol=1e-7
    )

two = lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2)
with check("accumulated", optimizer=two, epochs=1)[0] as trial:
    assert [trial.step_info(s, "TRAIN")["update"] for s in range(6)] == [0, 0, 1, 1, 2, 2]
    assert trial.tensor("gradient/last/weights/kernel").steps("TRAIN") == [1, 3, 5]
    assert trial.gaps() == []

if backend == "jax":
    with check("several", steps_per_execution=4, epochs=1)[0] as trial:
        assert [trial.step_info(s, "TRAIN")["update"] for s in range(3)] == [0, 4, 5]
        assert [gap["reason"] for gap in trial.gaps()] == ["not seen"]
"""

EAGER = (
    PROGRAM.partition("LOSS =")[0]
    + """
with check("eager", run_eagerly=True, epochs=1)[0] as trial:
    assert trial.gaps() == []
    assert trial.steps("TRAIN") == list(range(6))
"""
)

COMPILED = (
    "import functools, torch\ntorch.compile = functools.partial(torch.compile, backend='eager')\n"
    + PROGRAM.partition("LOSS =")[0]
    + """
with check("compiled", jit_compile=True, epochs=1)[0] as trial:
    assert [gap["reason"] for gap in trial.gaps()] == ["compiled graph"]
    assert [trial.step_info(s, "TRAIN")["update"] for s in range(6)] == list(range(6))
    assert trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"].size == 6
"""
)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.thorough)])
def test_a_backend(script, backend):
    pytest.importorskip(backend)
    script(PROGRAM, KERAS_BACKEND=backend)


@pytest.mark.thorough
def test_jax_eagerly(script):
    pytest.importorskip("jax")
    script(EAGER, KERAS_BACKEND="jax")


@pytest.mark.thorough
def test_torch_compiled(script):
    pytest.importorskip("torch")
    script(COMPILED, KERAS_BACKEND="torch")


def test_torch_records_a_training_once(luff_run):
    pytest.importorskip("torch")
    _, trial = luff_run(
        """
        import numpy as np, keras
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
        model.fit(x, x[:, :1], batch_size=32, epochs=2, verbose=0)
        """,
        KERAS_BACKEND="torch",
    )
    assert len(trial.workers()) == 1
    assert trial.steps("TRAIN") == list(range(6))
    assert trial.has_tensor("MSELoss_output_0")
