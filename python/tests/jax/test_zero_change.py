"""`luff run` on programs that do not mention Luff."""

from __future__ import annotations

import json

import numpy as np
import pytest

TRAININGS = """
import json
import jax
import jax.numpy as jnp
from jax import jit
import optax
import numpy as np
from flax import nnx

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (64, 8))
Y = X[:, :1] * 2 + 1
results, traces = {}, {}

def digest(*trees):
    return [np.asarray(leaf).tobytes().hex() for leaf in jax.tree_util.tree_leaves(trees)]

def make():
    one, two = jax.random.split(KEY)
    return {
        "one": {"kernel": jax.random.normal(one, (8, 16)) * 0.3, "bias": jnp.zeros(16)},
        "two": {"kernel": jax.random.normal(two, (16, 1)) * 0.3, "bias": jnp.zeros(1)},
    }

def loss_of(p, x, y):
    hidden = jnp.tanh(x @ p["one"]["kernel"] + p["one"]["bias"])
    return ((hidden @ p["two"]["kernel"] + p["two"]["bias"] - y) ** 2).mean()

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.last = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))

def net_loss(model, x, y):
    return ((model(x) - y) ** 2).mean()

def net_step(model, optimizer, x, y):
    traces["nnx"] = traces.get("nnx", 0) + 1
    loss, grads = nnx.value_and_grad(net_loss)(model, x, y)
    optimizer.update(model, grads)
    return loss
"""
COMPILED = """
tx = optax.adam(1e-2)

class Trainer:
    @jit
    def static(p, s):  # a compiled function in a class
        return p

@jax.jit(donate_argnums=(0, 1))
def train_step(p, s, x, y):
    traces["plain"] = traces.get("plain", 0) + 1
    loss, grads = jax.value_and_grad(loss_of)(p, x, y)
    updates, s = tx.update(grads, s, p)
    return optax.apply_updates(p, updates), s, loss

evaluate = jax.jit(loss_of)
predict = jax.jit(lambda p, x: x @ p["one"]["kernel"])
p = make(); s = tx.init(p)
losses = []
for index in range(12):
    p, s, loss = train_step(p, s, X, Y)
    losses.append(float(loss))
    if index % 4 == 3:
        evaluate(p, X, Y)
        predict(p, X)
results["plain"] = digest(p, s, losses)
results["caches"] = [train_step._cache_size(), evaluate._cache_size(), predict._cache_size()]
results["lowered"] = "stablehlo" in train_step.lower(p, s, X, Y).as_text()

model = Net(nnx.Rngs(0)); optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
compiled = nnx.jit(net_step)
evaluate_net = nnx.jit(net_loss)
net_losses = []
for _ in range(5):
    net_losses.append(float(compiled(model, optimizer, X, Y)))
    evaluate_net(model, X, Y)
results["nnx"] = digest(nnx.state(model, nnx.Param), net_losses)
print(json.dumps({"results": results, "traces": traces, "losses": losses, "net_losses": net_losses}))
"""
EAGER = """
tx = optax.sgd(0.05, momentum=0.9)
p = make(); s = tx.init(p)
kept = []
for _ in range(4):
    loss, grads = jax.value_and_grad(loss_of)(p, X, Y)
    updates, s = tx.update(grads, s, p)
    p = optax.apply_updates(p, updates)
    kept.append((float(loss), np.asarray(grads["two"]["bias"]).tolist()))
grad_fn = jax.jit(jax.value_and_grad(loss_of))
for _ in range(4):
    loss, grads = grad_fn(p, X, Y)
    updates, s = tx.update(grads, s, p)
    p = optax.apply_updates(p, updates)
    kept.append((float(loss), np.asarray(grads["two"]["bias"]).tolist()))
results["plain"] = digest(p, s, kept)
model = Net(nnx.Rngs(0)); optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
for _ in range(3):
    kept.append((float(net_step(model, optimizer, X, Y)), None))
results["nnx"] = digest(nnx.state(model, nnx.Param))
print(json.dumps({"results": results, "traces": traces, "kept": kept}))
"""


def told(done):
    return json.loads(done.stdout.splitlines()[0])


def test_compiled_functions(python, luff_run):
    bare = told(python(TRAININGS + COMPILED))
    done, trial = luff_run(TRAININGS + COMPILED)
    watched = told(done)
    assert watched == bare  # weights, states and losses bit by bit, traces and compilations
    assert watched["traces"] == {"plain": 1, "nnx": 1}
    with trial:
        assert len(trial.workers()) == 1
        assert len(trial.steps("TRAIN")) == 17 and len(trial.steps("EVAL")) == 8
        assert trial.scalars("loss", "TRAIN")["value"].tolist() == watched["losses"] + watched["net_losses"]
        assert trial.has_tensor("one.kernel") and trial.has_tensor("Net_first.kernel")
        assert {gap["reason"] for gap in trial.gaps()} == {
            "compiled graph",
            "not seen",
        }  # for gradients, and for donated values
        first = trial.tensor("one.kernel").summaries("TRAIN")
        assert first["mode_step"].tolist() == list(range(1, 12))


def test_updates_outside_of_compiled_functions(python, luff_run):
    bare = told(python(TRAININGS + EAGER))
    done, trial = luff_run(TRAININGS + EAGER)
    assert told(done) == bare
    with trial:
        assert len(trial.steps("TRAIN")) == 11 and trial.steps("EVAL") == []
        assert trial.scalars("loss", "TRAIN")["value"].tolist() == [loss for loss, _ in bare["kept"]]
        found = trial.tensor("gradient/two.bias").summaries("TRAIN")["sum"]
        np.testing.assert_array_equal(found, [grad[0] for _, grad in bare["kept"] if grad is not None])
        assert len(trial.tensor("gradient/Net_last.kernel").summaries("TRAIN")["sum"]) == 3
        assert trial.gaps() == []


def test_without_a_training_nothing_is_recorded(python, tmp_path):
    import os
    import shutil

    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")
    done = python(
        "import jax, optax\nprint(jax.jit(lambda x: x + 1)(1))\n",
        executable, "run", "--run", str(tmp_path / "run"), "--",
    )  # fmt: skip
    assert done.stdout.startswith("2") and "nothing was recorded" in done.stderr
