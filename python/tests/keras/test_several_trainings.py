"""Trainings of Keras that follow each other in one process, under `luff run`: each has a run of its own."""

from __future__ import annotations

import luff
import pytest

START = """
import hashlib
import keras
import numpy as np
from sklearn.datasets import load_digits
keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype("float32"), y.astype("int32")
def net():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
def fit(model, steps=120, fold=0, **more):
    epochs = steps // 40
    model.fit(x[fold:1280 + fold], y[fold:1280 + fold], batch_size=32, epochs=epochs, verbose=0, **more)
def show(model):
    for weight in model.get_weights(): print(hashlib.sha256(weight.tobytes()).hexdigest())
"""
FOLDS = """
kept = []
for fold in range(3):
    model = net()
    fit(model, fold=fold, validation_data=(x[1300:], y[1300:]))
    show(model)
    kept.append(model)
"""


def test_each_fold_has_a_run(luff_trainings, tmp_path):
    said, steps = luff_trainings(START + FOLDS, same=True)
    assert steps == [120, 120, 120]
    assert said.splitlines()[-1] == "luff: 3 trainings: 3 ok"
    seen = []
    for name in ("run", "run-2", "run-3"):
        with luff.open_trial(tmp_path / name) as trial:
            tensors = [trial.tensor(name) for name in trial.tensors()]
            loss = next(tensor.name for tensor in tensors if tensor.role == "loss")
            losses = trial.scalars(loss, "TRAIN")["value"]
            assert losses[0] > 1.8 > losses[-1]
            assert len(trial.steps("EVAL")) == 3 * 16
            seen.append(sorted(tensor.role for tensor in tensors))
    assert seen[0] == seen[1] == seen[2]
    assert {"weight", "gradient", "loss"} <= set(seen[0])


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_each_fold_has_a_run_on_other_backends(luff_trainings, monkeypatch, backend):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    _, steps = luff_trainings(START + FOLDS)
    assert steps == [120, 120, 120]


def test_what_belongs_together_shares_a_run(luff_trainings):
    _, steps = luff_trainings(
        START
        + """
def on(model):
    more = keras.Sequential([model, keras.layers.Dense(10)])
    more.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return more
fit(net(), 40)  # short
model = net()
fit(model)
fit(model, 160, initial_epoch=2)
tuned = on(model)
fit(tuned)  # also the variables of the first model
model.trainable = False
head = on(model)
fit(head)  # a training of its own
fit(tuned)  # an earlier model again: from here on all belong together
fit(net())
"""
    )
    assert steps == [40 + 120 + 80 + 120, 3 * 120]
