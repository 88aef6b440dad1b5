"""Arrays on two devices: each shard is recorded in place, nothing is gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import luff
import luff.jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_cases import X, Y, as_bytes, make_params, plain

pytestmark = pytest.mark.skipif(len(jax.devices()) < 2, reason="one device")


def sharded(params: Any) -> tuple[Any, Any]:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    split = NamedSharding(mesh, PartitionSpec(None, "d"))
    whole = NamedSharding(mesh, PartitionSpec())
    params["one"]["kernel"] = jax.device_put(params["one"]["kernel"], split)
    for layer, what in (("one", "bias"), ("two", "kernel"), ("two", "bias")):
        params[layer][what] = jax.device_put(params[layer][what], whole)
    return params, whole


def test_shards_are_recorded_with_their_place(tmp_path: Path) -> None:
    case = plain(optimizer=optax.sgd(0.1))
    params, whole = sharded(make_params())
    state = case.optimizer.init(params)
    x, y = jax.device_put(X, whole), jax.device_put(Y, whole)

    def train(hook: Any) -> list[Any]:
        nonlocal params
        step = case.step if hook is None else hook.watch(case.step)
        given, held = [], params
        for _ in range(3):
            given.append(held)
            held, _, loss, grads = step(held, state, x, y)
        return [given, loss, grads]

    bare = train(None)
    with luff.jax.attach(run=tmp_path / "run", save_all=True, save_interval=1) as hook:
        watched = train(hook)
        assert hook.health()["hook_errors"] == 0
    assert as_bytes(bare) == as_bytes(watched) and case.traces == [1]
    kernel = watched[0][2]["one"]["kernel"]
    with luff.open_trial(tmp_path / "run") as trial:
        assert not trial.has_tensor("one.kernel")
        for name, offset in (("one.kernel/shard0_0", 0), ("one.kernel/shard0_8", 8)):
            part = trial.tensor(name)
            assert part.shard(2, mode="TRAIN") == ((8, 16), (0, offset))
            np.testing.assert_array_equal(
                part.value(2, mode="TRAIN"), np.asarray(kernel)[:, offset : offset + 8]
            )
        bias = trial.tensor("one.bias")
        np.testing.assert_array_equal(bias.value(0, mode="TRAIN"), watched[0][0]["one"]["bias"])
        assert trial.gaps() == []


def test_nothing_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, _ = sharded(make_params())

    def gathered(*_: Any, **__: Any) -> Any:
        raise AssertionError("a sharded array was read as a whole")

    with luff.jax.attach(run=tmp_path / "run", save_all=True, save_interval=1) as hook:
        monkeypatch.setattr(type(params["one"]["kernel"]), "__array__", gathered)
        hook.start(params)
        hook.step(loss=1.0, grads=jax.tree.map(jnp.ones_like, params))
        assert hook.health()["hook_errors"] == 0
        monkeypatch.undo()
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.has_tensor("one.kernel/shard0_8")
