"""Where the time of a step goes."""

from __future__ import annotations

SCRIPT = """
import jax, jax.numpy as jnp, optax
def loss_fn(params, x, y): return jnp.mean((x @ params["w"] - y) ** 2)
params = {"w": jnp.zeros((8, 1))}
optimizer = optax.sgd(0.1)
state = optimizer.init(params)
@jax.jit
def step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss
import luff
batches = [(jax.random.normal(jax.random.key(i), (4, 8)), jnp.ones((4, 1))) for i in range(20)]
for x, y in luff.wait(batches):
    params, state, loss = step(params, state, x, y)
    float(loss)
"""


def test_compiled_steps_and_waits(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    assert lines["compute"]["steps"] == shown["steps"] == 20
    assert lines["data_wait"]["steps"] >= 19
