"""Two moons with a network in plain JAX: parameters in a list, jitted updates, a cosine schedule from Optax."""
# environment: tensorflow

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import make_moons

SEED = int(os.environ.get("SEED", "0"))
EPOCHS, BATCH_SIZE = 10, 40
rng = np.random.default_rng(SEED)

points, moon = make_moons(3000, noise=0.25, random_state=SEED)
points = ((points - points.mean(axis=0)) / points.std(axis=0)).astype(np.float32)
moon = moon.astype(np.int32)
train_x, train_y = points[:2400], moon[:2400]
test_x, test_y = points[2400:], moon[2400:]


def init_params(key, sizes):
    params = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:], strict=True):
        key, own = jax.random.split(key)
        weights = jax.random.normal(own, (n_in, n_out)) * jnp.sqrt(1 / n_in)
        params.append({"w": weights, "b": jnp.zeros(n_out)})
    return params


def predict(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x), y).mean()


total_steps = EPOCHS * (len(train_x) // BATCH_SIZE)
schedule = optax.cosine_decay_schedule(init_value=3e-3, decay_steps=total_steps, alpha=0.05)
optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(schedule))


@jax.jit
def update(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def accuracy(params, x, y):
    return (predict(params, x).argmax(axis=-1) == y).mean()


params = init_params(jax.random.key(SEED), [2, 32, 32, 2])
opt_state = optimizer.init(params)
for epoch in range(EPOCHS):
    losses = []
    for rows in np.split(rng.permutation(len(train_x)), len(train_x) // BATCH_SIZE):
        params, opt_state, loss = update(params, opt_state, train_x[rows], train_y[rows])
        losses.append(float(loss))
    print(f"epoch {epoch:2d} loss {np.mean(losses):.4f} accuracy {accuracy(params, test_x, test_y):.4f}")
print("score", float(accuracy(params, test_x, test_y)))
