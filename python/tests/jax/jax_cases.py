"""Small trainings as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (64, 8))
Y = X[:, :1] * 2 + 1


def make_params(dtype: Any = jnp.float32) -> dict[str, Any]:
    one, two = jax.random.split(KEY)
    return {
        "one": {
            "kernel": (jax.random.normal(one, (8, 16)) * 0.3).astype(dtype),
            "bias": jnp.zeros(16, dtype),
        },
        "two": {"kernel": (jax.random.normal(two, (16, 1)) * 0.3).astype(dtype), "bias": jnp.zeros(1, dtype)},
    }


def loss_of(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["one"]["kernel"] + params["one"]["bias"])
    return ((hidden @ params["two"]["kernel"] + params["two"]["bias"] - y) ** 2).mean()


@dataclass
class Plain:
    """A compiled function that trains, and the number of times it was traced."""

    optimizer: Any
    step: Any
    traces: list[int]


def plain(donate: bool = False, gives: str = "grads", optimizer: Any = None) -> Plain:
    tx = optimizer or optax.adam(1e-2)
    traces: list[int] = []

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        traces.append(1)
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        if gives == "grads":
            return params, state, loss, grads
        return params, state, {"loss": loss, "norm": optax.tree.norm(grads)}

    return Plain(tx, jax.jit(train_step, donate_argnums=(0, 1) if donate else ()), traces)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(2)])
        self.a_last = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.drop(nnx.relu(self.norm(self.first(x))))
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.a_last(x)


def net_loss(model: Net, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


def net_step(model: Net, optimizer: nnx.Optimizer, x: Any, y: Any) -> Any:
    loss, grads = nnx.value_and_grad(net_loss)(model, x, y)
    optimizer.update(model, grads)
    return loss, grads


def as_bytes(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree)]
