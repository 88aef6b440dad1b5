"""Whole programs under `luff run` with default rules: nothing is reported for a healthy one, faults are named."""

from __future__ import annotations

import pytest

DIGITS = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

digits = load_digits()
x = jnp.asarray(digits.data / 16.0, jnp.float32)
y = jnp.asarray(digits.target)
x_train, y_train, x_val, y_val = x[:1400], y[:1400], x[1400:], y[1400:]
rng = np.random.default_rng(0)
"""
PLAIN = """
def init(key, sizes=(64, 64, 32, 10)):
    keys = jax.random.split(key, len(sizes))
    return [
        {"w": jax.random.normal(k, (a, b)) * jnp.sqrt(2 / a), "b": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes, sizes[1:])
    ]

def loss_fn(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

params = init(jax.random.key(0))
tx = optax.sgd(RATE, momentum=0.9)
state = tx.init(params)
"""
COMPILED = """
@jax.jit
def train_step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

eval_loss = jax.jit(loss_fn)
for epoch in range(6):
    order = rng.permutation(1400)
    for i in range(0, 1376, 32):
        batch = order[i : i + 32]
        params, state, loss = train_step(params, state, x_train[batch], y_train[batch])
    print(epoch, float(loss), float(eval_loss(params, x_val, y_val)))
"""
FORGOTTEN = """
grad_fn = jax.jit(jax.value_and_grad(loss_fn))
for step in range(120):
    batch = rng.integers(0, 1400, 32)
    loss, grads = grad_fn(params, x_train[batch], y_train[batch])
    updates, state = tx.update(grads, state, params)
    new_params = optax.apply_updates(params, updates)  # and params stay as they are
"""
NNX = """
from flax import nnx

class Classifier(nnx.Module):
    def __init__(self, rngs):
        sizes = [64] + [48] * DEPTH
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in zip(sizes, sizes[1:])])
        self.head = nnx.Linear(48, 10, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = ACTIVATION(layer(x))
        return self.head(x)

def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss, grads

model = Classifier(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
eval_loss = nnx.jit(loss_fn)
for epoch in range(EPOCHS):
    order = rng.permutation(1400)
    for i in range(0, 1376, 32):
        batch = order[i : i + 32]
        loss, grads = train_step(model, optimizer, x_train[batch], y_train[batch])
    print(epoch, float(loss), float(eval_loss(model, x_val, y_val)))
"""


def nnx(depth: int, activation: str, epochs: int) -> str:
    return DIGITS + NNX.replace("DEPTH", str(depth)).replace("ACTIVATION", activation).replace(
        "EPOCHS", str(epochs)
    )


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (DIGITS + PLAIN.replace("RATE", "0.1") + COMPILED, ""),
        (DIGITS + PLAIN.replace("RATE", "1000.0") + COMPILED, "WeightUpdateRatio"),
        (DIGITS + PLAIN.replace("RATE", "0.1") + FORGOTTEN, "UnchangedTensor"),
        pytest.param(nnx(2, "nnx.relu", 5), "", marks=pytest.mark.thorough),
        pytest.param(nnx(8, "nnx.sigmoid", 2), "VanishingGradient", marks=pytest.mark.thorough),
    ],
    ids=["healthy", "rate too high", "new parameters forgotten", "nnx healthy", "nnx deep sigmoids"],
)
def test_a_program(luff_run, script: str, named: str) -> None:
    done, trial = luff_run(script)
    last = done.stderr.strip().splitlines()[-1]
    with trial:
        assert trial.steps("TRAIN")
    assert f"STOP {named}" in last if named else "no findings" in last, done.stderr
