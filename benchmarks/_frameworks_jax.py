"""JAX: a compiled function with Optax and a compiled Flax NNX module, watched by two lines with default settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import luff.jax
import numpy as np
import optax
from _pairs import compare
from flax import nnx

LIMIT = 1.02
STEPS, NNX_STEPS = 300, 70
BATCH = 1024
SIZES = (784, 256, 256, 10)
_RANDOM = np.random.default_rng(0)
_X = _RANDOM.standard_normal((8 * BATCH, SIZES[0])).astype(np.float32)
_Y = _RANDOM.integers(0, SIZES[-1], 8 * BATCH).astype(np.int32)


def _batch(index: int, size: int = BATCH) -> tuple[Any, Any]:
    at = index % 8 * size
    return _X[at : at + size], _Y[at : at + size]


def _plain() -> Callable[[Callable[[Any], Any]], object]:
    tx = optax.adam(1e-3)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        logits = x @ params[-1]["w"] + params[-1]["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    def train(watch: Callable[[Any], Any]) -> object:
        keys = jax.random.split(jax.random.key(0), len(SIZES))
        params = [
            {"w": jax.random.normal(key, (a, b)) * jnp.sqrt(2 / a), "b": jnp.zeros(b)}
            for key, a, b in zip(keys, SIZES, SIZES[1:], strict=False)
        ]
        state, loss, step = tx.init(params), None, watch(train_step)
        for index in range(STEPS):
            params, state, loss = step(params, state, *_batch(index))
        return float(loss)  # type: ignore[arg-type]

    return train


class _Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.hidden = nnx.Linear(7 * 7 * 32, 64, rngs=rngs)
        self.head = nnx.Linear(64, SIZES[-1], rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.max_pool(nnx.relu(self.first(x.reshape(-1, 28, 28, 1))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.norm(self.second(x))), (2, 2), (2, 2))
        return self.head(nnx.relu(self.hidden(x.reshape(len(x), -1))))


def _nnx() -> Callable[[Callable[[Any], Any]], object]:
    def loss_of(model: _Net, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    @nnx.jit
    def train_step(model: _Net, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_of)(model, x, y)
        optimizer.update(model, grads)
        return loss, grads

    fresh = _Net(nnx.Rngs(0))
    fresh_optimizer = nnx.Optimizer(fresh, optax.adam(1e-3), wrt=nnx.Param)

    def train(watch: Callable[[Any], Any]) -> object:
        model, optimizer = nnx.clone(fresh), nnx.clone(fresh_optimizer)
        loss, step = None, watch(train_step)
        for index in range(NNX_STEPS):
            loss, _ = step(model, optimizer, *_batch(index, 64))
        return float(loss)  # type: ignore[arg-type]

    return train


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns results and gates."""
    results, gates = [], []
    for title, train in (
        ("JAX, plain function, Adam", _plain()),
        ("JAX, NNX, convolutions, with gradients", _nnx()),
    ):

        def watched(run: Path, train: Any = train) -> None:
            with luff.jax.attach(run=run) as hook:
                train(hook.watch)

        result, held = compare(title, lambda train=train: train(lambda step: step), watched, LIMIT)  # type: ignore[misc]
        results.append(result)
        gates.append(held)
    return results, gates
