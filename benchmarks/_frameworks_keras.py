"""Keras on TensorFlow: `fit` of a dense and a convolutional model, and a loop with a tape, with default settings."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import luff.tensorflow
import numpy as np
import tensorflow as tf
from _pairs import alternate, keep_memory
from luff.keras._hook import hooks

LIMIT = 1.02
_RANDOM = np.random.default_rng(0)
_ROWS = 2048
_X = _RANDOM.standard_normal((_ROWS, 784)).astype(np.float32)
_Y = _RANDOM.integers(0, 10, _ROWS).astype(np.int32)


def _dense() -> Any:
    """Returns the `mlp` of the other benchmarks."""
    layers = [keras.Input((784,))]
    layers += [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


def _convolutional() -> Any:
    return keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )


def _loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _fit(make: Callable[[], Any], rows: int, batch: int) -> Callable[[], object]:
    """Returns a function that trains one more epoch with `fit` at each call."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile("adam", _loss(), metrics=["accuracy"])
    return lambda: model.fit(_X[:rows], _Y[:rows], batch_size=batch, verbose=0)


def _loop(make: Callable[[], Any], rows: int, batch: int) -> Callable[[], object]:
    """Like `_fit`, with a hand-written loop around a compiled step."""
    keras.utils.set_random_seed(0)
    model, optimizer, loss_of = make(), keras.optimizers.Adam(), _loss()

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices((_X[:rows], _Y[:rows])).batch(batch)

    def train() -> None:
        for x, y in data:
            step(x, y)

    return train


#: Title, way to train, model, rows per call, rows per batch.
_PROGRAMS = (
    ("fit, dense", _fit, _dense, 1024, 64),
    ("fit, convolutional", _fit, _convolutional, 2048, 512),
    ("tf.function with a tape, dense", _loop, _dense, 1024, 64),
    ("tf.function with a tape, convolutional", _loop, _convolutional, 2048, 512),
)


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns results and gates of all programs."""
    keep_memory()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # spinning threads would count as work
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results, gates = [], []
    for title, *program in _PROGRAMS:
        folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
        began = time.process_time()
        with luff.tensorflow.attach(run=folder / "run") as hook:
            opened = time.process_time() - began
            hooks.discard(hook)  # while bare trainings train

            def make(watched: bool, hook: Any = hook, program: Any = program) -> Callable[[], object]:
                way, *arguments = program
                piece: Callable[[], object] = way(*arguments)
                return _with(hook, piece) if watched else piece

            result, held = alternate(f"keras, {title}", make, LIMIT)
            assert hook.health()["hook_errors"] == 0, hook.health()
            began = time.process_time()
        result["once_s"] = opened + time.process_time() - began
        print(f"    opening and closing the run, once: {1e3 * result['once_s']:.0f} ms")
        shutil.rmtree(folder, ignore_errors=True)
        results.append(result)
        gates.append(held)
    return results, gates


def _with(hook: Any, train: Callable[[], object]) -> Callable[[], object]:
    def watched() -> None:
        hooks.add(hook, default=True)
        train()
        hooks.discard(hook)

    return watched
