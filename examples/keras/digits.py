"""Trains a small network on digits with Keras, and reads its run.

python examples/keras/digits.py            # watched by two lines
luff run -- python examples/keras/digits.py --bare
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import keras
import luff
import luff.keras
from sklearn.datasets import load_digits


def train(callbacks: list[keras.callbacks.Callback]) -> float:
    """Trains a network; returns its accuracy on held-out digits."""
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, name="scores"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    held_out = (x[1500:], y[1500:])
    history = model.fit(
        x[:1500], y[:1500], batch_size=50, epochs=10, validation_data=held_out, callbacks=callbacks, verbose=0
    )
    return float(history.history["val_accuracy"][-1])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bare", action="store_true", help="without the two lines")
    if parser.parse_args().bare:
        print(f"accuracy {train([]):.3f}")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with luff.keras.Callback(run, collections=["outputs"], save_interval=50) as hook:
            print(f"accuracy {train([hook]):.3f}")
        with luff.open_trial(hook.run) as trial:
            losses = trial.scalars("CrossEntropyLoss_output_0", "TRAIN")["value"]
            gradient = trial.tensor("gradient/hidden/weights/kernel")
            outputs = trial.tensor("hidden/outputs")
            print(f"{len(trial.steps('TRAIN'))} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
            print(f"largest gradient of the first step: {gradient.summary(0, 'TRAIN')['abs_max']:.4f}")
            print(f"outputs of the hidden layer at steps {outputs.value_steps('TRAIN')}")


if __name__ == "__main__":
    main()
