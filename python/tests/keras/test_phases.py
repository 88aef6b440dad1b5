"""Where the time of a batch goes."""

from __future__ import annotations

import pytest

SCRIPT = """
import keras
import numpy as np
keras.utils.set_random_seed(0)
x = np.random.rand(320, 16).astype("float32"); y = (x[:, 0] > 0.5).astype("int32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x[:256], y[:256], batch_size=16, epochs=2, verbose=0, validation_data=(x[256:], y[256:]))
model.save("model.keras")
model.train_on_batch(x[:16], y[:16])
"""


def test_batches_are_told_from_what_is_between(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    assert lines["compute"]["steps"] == shown["steps"] == 33
    assert shown["evaluation"]["steps"] >= 4
    assert lines["checkpoint"]["steps"] == 1  # before the last step


# 80 batches, each of which takes 30 ms to make.
SLOW = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import time
import keras
import numpy as np
keras.utils.set_random_seed(0)
class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.03)
        return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse"{how})
model.fit(Rows(), epochs=2, verbose=0, shuffle=False)
"""
SOON = "all,InputBound:seconds=0.2:window=10:first=5:worth=0.001"


def _waits(shown, lines):
    """Each step waits; of the time that its batch took to make, at least a third."""
    assert lines["data_wait"]["steps"] == shown["steps"] == 160
    assert lines["data_wait"]["seconds"] > 160 * 0.01
    assert lines["compute"]["steps"] == 160


@pytest.mark.parametrize(
    ("backend", "how", "workers"),
    [("tensorflow", "", 1), ("tensorflow", ", jit_compile=True", 1), ("jax", "", 0)],
)
def test_fit_that_waits_for_its_batches(luff_findings, phases_of, backend, how, workers):
    _, rules, trial = luff_findings(SLOW.format(backend=backend, how=how), "--rules", SOON)
    assert "InputBound" in rules
    _waits(*phases_of())
    found = [finding for finding in trial.findings() if finding["rule"] == "InputBound"]
    assert f"PyDataset has {workers} worker" in found[0]["what"]
    assert "use_multiprocessing=True to super().__init__() of Rows" in found[0]["remedy"]


def test_what_helps_a_pipeline_is_not_claimed(luff_findings, phases_of):
    script = """
        import keras, numpy as np, tensorflow as tf, time
        def slow(i):
            time.sleep(0.03)
            return np.float32(i)
        data = tf.data.Dataset.range(160).map(lambda i: tf.py_function(slow, [i], tf.float32))
        data = data.map(lambda v: (tf.reshape(v, [1, 1]), tf.reshape(v, [1, 1])))
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        model.fit(data, verbose=0)
    """
    _, rules, _ = luff_findings(script, "--rules", SOON)
    assert "InputBound" not in rules
    shown, lines = phases_of()
    _waits(shown, lines)
    assert "num_parallel_calls" in shown["verdict"]


OF_FIT = """
import warnings
import keras, numpy as np
import luff, luff.keras
class Rows(keras.utils.PyDataset):
    def __init__(self):
        pass  # Keras warns of it
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return x, y
x, y = np.ones((4, 8), "float32"), np.ones((4, 1), "float32")
def model_of():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
def kinds(run):
    with luff.open_trial(run) as trial:
        return [one["type"] for one in trial.document("loaders")["loaders"]]
warnings.simplefilter("error")
first = luff.keras.Callback(run="first")
model = model_of()
model.fit(x, y, verbose=0, callbacks=[first])
model.evaluate(x, y, verbose=0)
second = luff.keras.Callback(run="second")
rows = Rows()
other = model_of()
try:
    other.fit(rows, verbose=0, callbacks=[second])
    raise SystemExit("Keras' warning was lost")
except UserWarning as told:
    assert "super" in str(told)
other.fit(rows, verbose=0, callbacks=[second])
first.flush(10.0), second.flush(10.0)
print(kinds("first"), kinds("second"))
other.train_on_batch(x, y)
second.flush(10.0)
print(kinds("second"))
"""


@pytest.mark.parametrize(("backend", "arrays"), [("tensorflow", "tf.data"), ("jax", "other")])
def test_each_run_is_told_what_its_own_fit_takes(script, backend, arrays):
    """Also while an earlier hook lives; Keras' own warnings stay, and outside of `fit` nothing is said."""
    said = script(OF_FIT, KERAS_BACKEND=backend).stdout.splitlines()
    assert said[-2:] == [f"['{arrays}'] ['PyDataset']", "[]"]


def test_a_loop_over_a_pipeline_waits_for_it(luff_run, phases_of):
    script = """
        import keras, numpy as np, tensorflow as tf, time
        def rows():
            for _ in range(40):
                time.sleep(0.03)
                yield np.ones((4, 8), "float32"), np.ones((4, 1), "float32")
        spec = (tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1)))
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()
        for x, y in tf.data.Dataset.from_generator(rows, output_signature=spec):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    """
    luff_run(script)
    shown, lines = phases_of()
    assert lines["data_wait"]["steps"] >= shown["steps"] - 1
    assert lines["data_wait"]["seconds"] > 39 * 0.01


def test_compilations_of_jax_are_told(luff_run, phases_of):
    script = """
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        import keras, numpy as np
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        for size in range(1, 9):
            for _ in range(3):
                model.train_on_batch(np.ones((size, 8)), np.ones((size, 1)))
    """
    luff_run(script)
    shown, lines = phases_of()
    assert shown["steps"] == 24
    assert lines["compile"]["steps"] >= 8  # once for each size
    assert lines["compile"]["steps"] < 24
