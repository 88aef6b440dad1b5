"""Handwritten digits with a Keras Sequential network: batch normalisation, the rate cut on plateaus."""
# environment: tensorflow

import os

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = int(os.environ.get("SEED", "0"))
keras.utils.set_random_seed(SEED)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

digits = load_digits()
images = digits.images[..., None].astype("float32") / 16.0 - 0.3  # about zero on average
train_x, test_x, train_y, test_y = train_test_split(
    images, digits.target, test_size=0.3, stratify=digits.target, random_state=SEED
)

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(8, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.Activation("relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.Activation("relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=4e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
callbacks = [
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True),
]
model.fit(
    train_x,
    train_y,
    batch_size=32,
    epochs=8,
    validation_data=(test_x, test_y),
    callbacks=callbacks,
    verbose=2,
)
_, accuracy = model.evaluate(test_x, test_y, verbose=0)
print("score", accuracy)
