"""Loops of TensorFlow that follow each other in one process: each has a run where the script says where it ends."""

from __future__ import annotations

import keras
import pytest

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a tape is TensorFlow's")

SCRIPT = """
import keras, tensorflow as tf
import luff.tensorflow
from sklearn.datasets import load_digits
keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype("float32"), y.astype("int32")
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for fold in range(2):
    hook = luff.tensorflow.attach()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.01)
    for i in range(30):
        with tf.GradientTape() as tape:
            loss = loss_of(y[i * 32:i * 32 + 32], model(x[i * 32:i * 32 + 32], training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    hook.close()
"""


def test_a_training_ends_where_its_hook_is_closed(luff_trainings):
    said, steps = luff_trainings(SCRIPT)
    assert steps == [30, 30]
    assert said.splitlines()[-1] == "luff: 2 trainings: 2 ok"
