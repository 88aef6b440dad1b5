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


def test_compilations_are_told(luff_run, phases_of):
    """Of a function that is compiled for each length, and once for a rate that changes."""
    script = """
    import jax, jax.numpy as jnp, optax
    def loss_fn(params, x): return jnp.mean((x @ params["w"]) ** 2)
    params = {"w": jnp.ones((8, 1))}
    optimizer = optax.sgd(0.1)
    state = optimizer.init(params)
    @jax.jit
    def step(params, state, x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss
    data = {n: jnp.ones((n, 8)) for n in range(1, 121)}
    for n in range(1, 121):
        params, state, loss = step(params, state, data[n if n > 60 else 1])
        float(loss)
    """
    _, trial = luff_run(script, "--rules", "Recompiles:seconds=0.01:share=0.01")
    shown, lines = phases_of()
    assert shown["steps"] == 120
    assert 61 <= lines["compile"]["steps"] < 120
    assert lines["compile"]["seconds"] > lines["compute"]["seconds"]
    found = [finding for finding in trial.findings() if finding["rule"] == "Recompiles"]
    assert len(found) == 1
    assert "JAX_EXPLAIN_CACHE_MISSES" in found[0]["remedy"]
