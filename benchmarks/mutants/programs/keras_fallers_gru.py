"""Falls in the readings of a worn accelerometer: a functional Keras GRU, class weights for the rare falls."""
# environment: tensorflow

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SEED = int(os.environ.get("SEED", "0"))
keras.utils.set_random_seed(SEED)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
rng = np.random.default_rng(SEED)

STEPS, AXES, FALLS = 24, 3, 0.2


def recordings(n):
    """Walking, with bumps. In a fall, a bump is followed by rest in another position."""
    t = np.arange(STEPS)
    gait = np.sin(2 * np.pi * (t / rng.uniform(5, 9, (n, 1)) + rng.random((n, 1))))
    x = rng.uniform(0.3, 0.8, (n, 1, AXES)) * gait[..., None] + np.array([0.0, 0.0, 1.0])
    fell = rng.random(n) < FALLS
    bumped = fell | (rng.random(n) < 0.5)
    when = rng.integers(6, STEPS - 8, n)
    for i in np.flatnonzero(bumped):
        x[i, when[i] : when[i] + 2] += rng.normal(scale=1.2, size=AXES)
        if fell[i] or rng.random() < 0.2:  # some only sit down
            tilt = rng.uniform(0.4, 1.4) if fell[i] else rng.uniform(0.1, 0.6)
            x[i, when[i] + 2 :] = 0.4 * (x[i, when[i] + 2 :] - [0, 0, 1]) + [np.sin(tilt), 0, np.cos(tilt)]
    x += 0.4 * rng.normal(size=x.shape)
    return x.astype("float32"), fell.astype("float32")


train_x, train_y = recordings(2000)
test_x, test_y = recordings(500)
mean, std = train_x.mean(axis=(0, 1)), train_x.std(axis=(0, 1))
train_x, test_x = (train_x - mean) / std, (test_x - mean) / std

inputs = keras.Input(shape=(STEPS, AXES), name="acceleration")
h = layers.Conv1D(16, 3, padding="same", activation="elu")(inputs)
h = layers.GRU(24)(h)
h = layers.Dropout(0.1)(h)
outputs = layers.Dense(1, activation="sigmoid", name="fall")(h)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3, clipnorm=1.0),
    loss="binary_crossentropy",
    metrics=[keras.metrics.BinaryAccuracy(name="accuracy"), keras.metrics.AUC(curve="PR", name="pr_auc")],
)

share = float(train_y.mean())
history = model.fit(
    train_x,
    train_y,
    batch_size=50,
    epochs=5,
    validation_data=(test_x, test_y),
    class_weight={0: 0.5 / (1 - share), 1: 0.5 / share},
    verbose=0,
)
for epoch, (loss, val_loss, auc) in enumerate(
    zip(*(history.history[k] for k in ("loss", "val_loss", "val_pr_auc")), strict=True)
):
    print(f"epoch {epoch}: loss {loss:.4f} val_loss {val_loss:.4f} val_pr_auc {auc:.4f}")

# Balanced accuracy: 0.5 for any constant answer.
found = model.predict(test_x, verbose=0)[:, 0] > 0.5
print("score", (found[test_y == 1].mean() + (~found[test_y == 0]).mean()) / 2)
