"""The part `frameworks` of `./dev gpu`: JAX and TensorFlow train on the GPU as without Luff, and are recorded right.

Their summaries are computed inside the compiled step, or by a function of Luff's, not by the kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WITHIN_S = 200

JAX = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
key = jax.random.key(0)
params = {"w": jax.random.normal(key, (300, 40)) * 0.1, "b": jnp.zeros(40)}

@jax.jit
def train_step(params, x, y):
    def loss_of(p):
        return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)
    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, grads

step, hook = train_step, None
if sys.argv[1:]:
    import luff.jax
    hook = luff.jax.attach(run=sys.argv[1])
    step = hook.watch(train_step)
losses, sums = [], {"w": [], "b": []}
for i in range(8):
    one, two = jax.random.split(jax.random.key(i + 1))
    for name, value in params.items():
        sums[name].append(float(np.asarray(value, np.float64).sum()))
    params, loss, grads = step(params, jax.random.normal(one, (64, 300)), jax.random.normal(two, (64, 40)))
    losses.append(float(loss))
if hook is not None:
    hook.close()
print(json.dumps([jax.devices()[0].platform, losses, sums]))
"""

TENSORFLOW = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(0)
layers = keras.layers.Dense(40, activation="tanh", name="one"), keras.layers.Dense(1, name="two")
model = keras.Sequential([keras.Input((300,)), *layers])
model.compile(keras.optimizers.SGD(0.05), loss="mse")
random = np.random.default_rng(0)
x, y = random.standard_normal((256, 300)).astype("f4"), random.standard_normal((256, 1)).astype("f4")
callbacks = []
if sys.argv[1:]:
    import luff.keras
    weights = {"w": {"roles": ["weight"], "forms": ["summary"], "save": {"save_interval": 1}}}
    callbacks.append(luff.keras.attach(model, run=sys.argv[1], collections=weights))
losses, sums = [], {"one": [], "two": []}
for epoch in range(8):
    for name in sums:
        sums[name].append(float(model.get_layer(name).get_weights()[0].astype("f8").sum()))
    losses += model.fit(x, y, batch_size=256, shuffle=False, verbose=0).history["loss"]
for one in callbacks:
    getattr(one, "close", lambda: None)()
print(json.dumps(["gpu" if tf.config.list_physical_devices("GPU") else "cpu", losses, sums]))
"""

SCRIPTS = {"jax": JAX, "tensorflow": TENSORFLOW}


def _row(check: str, good: bool | None, detail: str = "") -> Row:
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"check": check, "status": status, "detail": detail}


def _said(script: str, folder: Path, *arguments: str) -> tuple[Any, str]:
    """Returns what a script printed last, and why it did not."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    quiet |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
    if "import jax" not in script:
        del quiet["XLA_FLAGS"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=folder, env=os.environ | quiet,
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"not done in {WITHIN_S} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode != 0 or not lines:
        return None, (done.stderr.strip().splitlines() or ["said nothing"])[-1][-300:]
    return json.loads(lines[-1]), ""


def _recorded(run: Path, sums: dict[str, list[float]]) -> str:
    """Returns how a run differs from sums of weights before each step; "" if it does not."""
    import luff

    try:
        trial = luff.open_trial(run)
    except Exception as error:  # the other one goes on
        return repr(error)[:300]
    wrong = []
    for name, expected in sums.items():
        mine = [n for n in trial.tensors() if name in n.replace(".", "/").split("/") and "grad" not in n]
        mine = [n for n in mine if not n.endswith(("bias", "/b")) and not n.startswith("optimizer")]
        if len(mine) != 1:
            wrong.append(f"{name} is {mine} of {trial.tensors()[:8]}")
            continue
        tensor = trial.tensor(mine[0])
        found = iter([tensor.summary(step) for step in tensor.steps()])
        for step, value in enumerate(expected[1:-1], 1):  # the first may be one that was compiled, not seen
            if not any(one and abs(one["sum"] - value) <= 1e-5 * one["l1"] + 1e-6 for one in found):
                wrong.append(f"{mine[0]} lacks {value}, before step {step}")
                break
    return "; ".join(wrong)


def frameworks(folder: Path, platform: str = "gpu", names: tuple[str, ...] = tuple(SCRIPTS)) -> Iterator[Row]:
    """Each framework bare and watched."""
    with ThreadPoolExecutor(2) as pool:
        jobs = {
            name: (
                pool.submit(_said, SCRIPTS[name], folder),
                pool.submit(_said, SCRIPTS[name], folder, str(folder / name)),
            )
            for name in names
        }
        for name, (bare_job, watched_job) in jobs.items():
            (bare, why), (watched, broken) = bare_job.result(), watched_job.result()
            check = f"{name}: same losses and weights"
            if bare is None:
                yield _row(check, None, f"cannot be trained here: {why}")
                continue
            if bare[0] not in (platform, {"gpu": "cuda"}.get(platform)):
                yield _row(check, None, f"{name} trains on {bare[0]}")
                continue
            if watched is None:
                yield _row(check, False, broken)
                continue
            yield _row(
                check, watched == bare, "" if watched == bare else f"{bare[1][:3]}, watched {watched[1][:3]}"
            )
            wrong = _recorded(folder / name, bare[2])
            yield _row(f"{name}: recorded as it was", not wrong, wrong)
