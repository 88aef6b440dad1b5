"""Trains a classifier of digits with Flax NNX and Optax, watched by two lines.

python train.py RUN, or without them: luff run -- python train.py
"""

from __future__ import annotations

import sys

import jax.numpy as jnp
import luff.jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, 64, rngs=rngs)
        self.second = nnx.Linear(64, 32, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.second(nnx.relu(self.first(x)))))


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss, luff.jax.summarize(grads)


def main() -> None:
    digits = load_digits()
    x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    run = sys.argv[1] if len(sys.argv) > 1 else None
    hook = luff.jax.attach(run=run, collections={"weights": {"save": {"save_interval": 100}}})
    step = hook.watch(train_step)
    evaluate = hook.watch(nnx.jit(loss_fn), mode="EVAL")

    random = np.random.default_rng(0)
    for epoch in range(8):
        for batch in np.split(random.permutation(1400), 40):
            loss, _ = step(model, optimizer, x[batch], y[batch])
        print(
            f"epoch {epoch}: {float(loss):.3f}, validation {float(evaluate(model, x[1400:], y[1400:])):.3f}"
        )
    hook.close()


if __name__ == "__main__":
    main()
