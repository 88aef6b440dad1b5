"""Trainings of JAX that follow each other in one process: each has a run where the script says where it ends."""

from __future__ import annotations

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, optax
import luff.jax
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
def start(key):
    one, other = jax.random.split(jax.random.PRNGKey(key))
    return {"a": jax.random.normal(one, (64, 32)) * 0.1, "b": jax.random.normal(other, (32, 10)) * 0.1}
def loss_of(params, x, y):
    scores = jax.nn.relu(x @ params["a"]) @ params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
optimizer = optax.adam(1e-2)
@jax.jit
def train(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss
for fold in range(2):
    hook = luff.jax.attach()
    step = hook.watch(train)
    params = start(fold)
    state = optimizer.init(params)
    for i in range(60):
        rows = np.arange(i * 32, i * 32 + 32) % 1280
        params, state, loss = step(params, state, x[rows], y[rows])
    hook.close()
"""


def test_a_training_ends_where_its_hook_is_closed(luff_trainings):
    said, steps = luff_trainings(SCRIPT)
    assert steps == [60, 60]
    assert said.splitlines()[-1] == "luff: 2 trainings: 2 ok"
