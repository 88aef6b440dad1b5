"""Where the time of a batch goes."""

from __future__ import annotations

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
