"""Recorded values of watched functions and of steps reported by hand: JAX's own, at the right step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import luff
import luff.jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax_cases import KEY, Net, X, Y, as_bytes, loss_of, make_params, net_step, plain
from luff.jax._auto import Jitted

EVERYTHING: dict[str, Any] = {"save_all": True, "save_interval": 1}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    hook = luff.jax.get_hook()
    if hook is not None:
        hook.close()


def losses(trial: luff.Trial, mode: str = "TRAIN", name: str = "loss") -> dict[int, float]:
    found = trial.scalars(name, mode)
    return dict(zip(found["mode_step"].tolist(), found["value"].tolist(), strict=True))


def value(trial: luff.Trial, name: str, step: int) -> Any:
    return trial.tensor(name).value(step, mode="TRAIN")


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_values_are_those_of_jax(tmp_path: Path, donate: bool, by_hand: bool) -> None:
    case, params = plain(donate), make_params()
    state = case.optimizer.init(params)
    expected: list[Any] = []
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        step = case.step if by_hand else hook.watch(case.step)
        if by_hand:
            hook.start(params)
        for _ in range(5):
            before = jax.tree.map(np.array, params)
            params, state, loss, grads = step(params, state, X, Y)
            if by_hand:
                hook.step(loss=loss, params=params, grads=grads, opt_state=state)
            expected.append((before, float(loss), grads, jax.tree.map(np.array, state[0].mu)))
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2, 3, 4]
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 1, 2, 3, 4]
        assert losses(trial) == {index: loss for index, (_, loss, _, _) in enumerate(expected)}
        for index, (before, _, grads, mu) in enumerate(expected):
            for layer in ("one", "two"):
                for what in ("kernel", "bias"):
                    name = f"{layer}.{what}"
                    np.testing.assert_array_equal(value(trial, name, index), before[layer][what])
                    np.testing.assert_array_equal(value(trial, f"gradient/{name}", index), grads[layer][what])
                    np.testing.assert_array_equal(
                        value(trial, f"optimizer/ScaleByAdam.mu/{name}", index), mu[layer][what]
                    )
        assert value(trial, "optimizer/ScaleByAdam.count", 3) == 4
        assert trial.gaps() == []
    assert case.traces == [1] and case.step._cache_size() == 1


def test_summaries_without_options_are_those_of_the_values(tmp_path: Path) -> None:
    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(case.step)
        kernels = []
        for _ in range(3):
            kernels.append(np.asarray(params["one"]["kernel"], dtype=np.float64))
            params, state, _, _ = step(params, state, X, Y)
    with luff.open_trial(tmp_path / "run") as trial:
        summary = trial.tensor("one.kernel").summaries("TRAIN")
        np.testing.assert_allclose(summary["sum"], [k.sum() for k in kernels])
        np.testing.assert_array_equal(summary["max"], [k.max() for k in kernels])
        assert trial.tensor("gradient/two.bias").summaries("TRAIN")["count"].tolist() == [1, 1, 1]
        assert not trial.tensor("one.kernel").value_steps("TRAIN")


def test_modules_of_nnx(tmp_path: Path) -> None:
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    train = nnx.jit(net_step)
    kernels, means, given = [], [], []
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        step = hook.watch(train)
        for _ in range(4):
            kernels.append(np.array(model.blocks[1].kernel[...]))
            means.append(np.array(model.norm.mean[...]))
            given.append(step(model, optimizer, X, Y))
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        assert losses(trial) == {index: float(loss) for index, (loss, _) in enumerate(given)}
        for index, (_, grads) in enumerate(given):
            np.testing.assert_array_equal(value(trial, "Net_blocks.1.kernel", index), kernels[index])
            np.testing.assert_array_equal(value(trial, "Net_norm.mean", index), means[index])
            np.testing.assert_array_equal(
                value(trial, "gradient/Net_blocks.1.kernel", index), grads["blocks"][1]["kernel"][...]
            )
        assert trial.has_tensor("optimizer/ScaleByAdam.nu/Net_first.bias")
        document = trial.document("model")
    (described,) = document["models"]
    types = {module["path"]: module["type"] for module in described["modules"]}
    assert types["norm"] == "BatchNorm" and types["blocks.0"] == "Linear" and types[""] == "Net"
    assert [p["path"] for p in described["parameters"]][:2] == [
        "first.kernel",
        "first.bias",
    ]  # in the order of the class
    assert [p["path"] for p in described["parameters"]][-1] == "a_last.bias"
    assert {b["path"] for b in described["buffers"]} == {"norm.mean", "norm.var"}
    assert next(m for m in described["modules"] if m["path"] == "drop")["settings"]["rate"] == 0.1
    assert document["optimizers"][0]["type"] == "Adam"


def test_bfloat16(tmp_path: Path) -> None:
    case, params = plain(), make_params(jnp.bfloat16)
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        _, _, loss, grads = hook.watch(case.step)(
            params, state, X.astype(jnp.bfloat16), Y.astype(jnp.bfloat16)
        )
    with luff.open_trial(tmp_path / "run") as trial:
        kernel = value(trial, "one.kernel", 0)
        assert kernel.dtype == jnp.bfloat16
        assert kernel.tobytes() == np.asarray(params["one"]["kernel"]).tobytes()
        assert (
            value(trial, "gradient/one.kernel", 0).tobytes() == np.asarray(grads["one"]["kernel"]).tobytes()
        )
        assert losses(trial)[0] == float(loss)


class Pair(NamedTuple):
    w: Any
    b: Any


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (Pair(jnp.ones((2, 3)), jnp.zeros(3)), {"w": "WEIGHT", "b": "BIAS"}),
        ([Pair(jnp.ones(2), None), jnp.ones(())], {"0.w": "WEIGHT", "1": "WEIGHT"}),
        (jnp.ones(4), {"params": "WEIGHT"}),
        ({"params": {"Dense_0": {"kernel": jnp.ones(3)}}, "batch_stats": {"m": jnp.ones(1)}},
         {"Dense_0.kernel": "WEIGHT", "m": "BUFFER"}),
        ({"n": np.ones(3), "s": 2.5, "key": jax.random.key(0)}, {"n": "WEIGHT", "s": "WEIGHT", "key": None}),
    ],
)  # fmt: skip
def test_any_pytree(tmp_path: Path, params: Any, names: dict[str, str | None]) -> None:
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        hook.start(params)
        hook.step(loss=1.0)
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        for name, role in names.items():
            if role is None:
                assert any(gap["tensor"] == name and gap["reason"] == "unsupported" for gap in trial.gaps())
            else:
                assert trial.tensor(name).role == role.lower()
                assert trial.tensor(name).value_steps("TRAIN") == [0]


def test_evaluations_between_steps(tmp_path: Path) -> None:
    case, params = plain(donate=True), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        evaluate = hook.watch(jax.jit(loss_of), mode="EVAL")
        hook.start(params)
        for _ in range(3):
            evaluate(params, X, Y)
            params, state, loss, grads = case.step(params, state, X, Y)
            hook.step(loss=loss, params=params, grads=grads)
            hook.save_scalar("rate", 0.1)
            hook.step(loss={"loss": 0.5, "other_loss": 0.25}, mode="PREDICT")
        luff.jax.save_tensor("mine", jnp.arange(3))
    with luff.open_trial(tmp_path / "run") as trial:
        assert [trial.steps(mode) for mode in ("TRAIN", "EVAL", "PREDICT")] == [[0, 1, 2]] * 3
        np.testing.assert_allclose(
            list(losses(trial, "EVAL").values()), list(losses(trial).values()), rtol=1e-6
        )
        assert losses(trial, "PREDICT", "other_loss") == {0: 0.25, 1: 0.25, 2: 0.25}
        assert losses(trial, "PREDICT", "scalar/rate") == {0: 0.1, 1: 0.1, 2: 0.1}
        # Donated values no longer exist after a step, so after an evaluation in between, the next step does not have
        # them.
        steps = trial.tensor("one.kernel").value_steps("TRAIN")
        assert set(steps) <= {0, 1, 2} and len(steps) + len([g for g in trial.gaps() if g["tensor"]]) > 0


def test_what_a_scan_hides_is_a_gap(tmp_path: Path) -> None:
    case, params = plain(), make_params()
    state = case.optimizer.init(params)

    @jax.jit
    def epoch(params: Any, state: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            params, state, loss, _ = case.step(*carry, X, Y)
            return (params, state), loss

        (params, state), found = jax.lax.scan(body, (params, state), None, length=10)
        return params, state, found

    with luff.jax.attach(run=tmp_path / "run") as hook:
        train = hook.watch(epoch)
        for _ in range(3):
            params, state, found = train(params, state)
    with luff.open_trial(tmp_path / "run") as trial:
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 10, 20]
        assert losses(trial)[2] == float(found[-1])
        assert sum(gap["count"] for gap in trial.gaps() if gap["reason"] == "compiled graph") >= 27


def test_accumulation_counts_updates(tmp_path: Path) -> None:
    case, params = plain(optimizer=optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2)), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(case.step)
        for _ in range(5):
            params, state, _, _ = step(params, state, X, Y)
    with luff.open_trial(tmp_path / "run") as trial:
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 0, 1, 1, 2]


def test_summaries_from_inside_of_a_compiled_function(tmp_path: Path) -> None:
    @jax.jit
    def train_step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, luff.jax.summarize(grads), grads

    params = make_params()
    params["two"]["bias"] = jnp.full(1, jnp.nan)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(train_step, read=lambda args, kwargs, result: {
            "params": args[0], "loss": result[1], "grads": result[2]})  # fmt: skip
        _, _, _, grads = step(params, X, Y)
        hook.step(
            loss=1.0,
            grads=luff.jax.summarize({"a": jnp.array([3.0, jnp.inf, 0.0, -4.0]), "n": jnp.arange(4)}),
        )
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        nan = trial.tensor("gradient/one.kernel").summaries("TRAIN")
        assert nan["nan_count"].tolist() == [int(np.isnan(np.asarray(grads["one"]["kernel"])).sum())]
        one = trial.tensor("gradient/a").summaries("TRAIN")
        found = {
            key: one[key].tolist()[0] for key in ("count", "sum", "min", "max", "zero_count", "inf_count")
        }
        assert found == {"count": 4, "sum": -1, "min": -4, "max": 3, "zero_count": 1, "inf_count": 1}
        assert trial.tensor("gradient/n").summaries("TRAIN")["max"].tolist() == [3]


def test_arrays_elsewhere_are_summarised_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from luff.jax import _values

    monkeypatch.setattr(_values.Reader, "_place", lambda self, value: _values._DEVICE)  # as on an accelerator
    remote: list[int] = []
    original = _values.Reader._capture_remote
    monkeypatch.setattr(
        _values.Reader,
        "_capture_remote",
        lambda self, found: remote.append(len(found)) or original(self, found),
    )
    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(
        run=tmp_path / "run", collections={"biases": {"save": {"save_interval": 2}}}
    ) as hook:
        step = hook.watch(case.step)
        kernels = []
        for _ in range(3):
            kernels.append(np.array(params["one"]["kernel"]))
            params, state, _, _ = step(params, state, X, Y)
        assert hook.health()["hook_errors"] == 0
    assert sum(remote) == 3 * (2 + 4)  # kernels and gradients of three steps
    with luff.open_trial(tmp_path / "run") as trial:
        summary = trial.tensor("one.kernel").summaries("TRAIN")
        np.testing.assert_allclose(summary["sum"], [k.sum() for k in kernels], rtol=1e-5)
        np.testing.assert_array_equal(summary["min"], [k.min() for k in kernels])
        assert trial.tensor("one.bias").value_steps("TRAIN") == [0, 2]
        assert case.traces == [1]


def test_a_run_is_resumed(tmp_path: Path) -> None:
    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    for resume in (False, True):
        with luff.jax.attach(run=tmp_path / "run", resume=resume) as hook:
            step = hook.watch(case.step)
            for _ in range(2):
                params, state, _, _ = step(params, state, X, Y)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2, 3]
        assert [trial.step_info(step)["update"] for step in trial.steps()] == [0, 1, 2, 3]


def test_what_is_traced_is_not_recorded(tmp_path: Path) -> None:
    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(case.step)
        outer = jax.jit(lambda p, s: step(p, s, X, Y)[2])
        assert float(outer(params, state)) > 0
        jax.jit(lambda p: hook.step(loss=loss_of(p, X, Y), params=p))(params)
        step(params, state, X, Y)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps() == [0]


def test_errors_of_luff_never_reach_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from luff.jax import Hook, _watch

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken on purpose")

    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(case.step)
        monkeypatch.setattr(_watch, "look_at_result", broken)
        step(params, state, X, Y)
        monkeypatch.setattr(_watch, "look_at_call", broken)
        step(params, state, X, Y)
        monkeypatch.setattr(Hook, "parameters", broken)
        hook.step(loss=object(), params=params)
        assert hook.health()["hook_errors"] >= 3
        with pytest.raises(TypeError):  # errors of the training itself are not caught
            step(params)
        assert float(step(params, state, X, Y)[2]) > 0


def test_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, params = plain(), make_params()
    state = case.optimizer.init(params)
    saved: list[int] = []
    hook = luff.jax.attach(run=tmp_path / "run", on_stop=lambda: saved.append(1))
    session = hook.session

    class Stopping:
        """A session that reports a stop after step 3."""

        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        def stop_state(self) -> int:
            return 1

        def at_step_boundary(self, step: int) -> int:
            return 2 if step >= 3 else 0

        def stop_reason(self) -> str:
            return "on purpose"

    hook.steps.session = Stopping()  # type: ignore[assignment]
    step = hook.watch(case.step)
    for _ in range(3):
        params, state, _, _ = step(params, state, X, Y)
    with pytest.raises(luff.StopTraining) as stopped:
        step(params, state, X, Y)
    assert stopped.value.reason == "on purpose" and saved == [1]
    assert float(jax.tree_util.tree_leaves(params)[0].sum()) != 0  # the last step is complete
    step(params, state, X, Y)  # unwatched
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.outcome == "stopped" and trial.steps("TRAIN") == [0, 1, 2]


def test_settings_that_the_state_holds(tmp_path: Path) -> None:
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(0.1, 0.0, 10))
    case, params = plain(optimizer=tx, gives="metrics"), make_params()
    state = tx.init(params)
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step = hook.watch(case.step)
        for _ in range(3):
            params, state, metrics = step(params, state, X, Y)
    with luff.open_trial(tmp_path / "run") as trial:
        np.testing.assert_allclose(
            list(losses(trial, name="optimizer/Adam.group0.lr").values()), [0.1, 0.09, 0.08], rtol=1e-6
        )
        assert losses(trial, name="scalar/norm")[2] == float(metrics["norm"])
        # gradients do not leave the compiled function
        assert any(gap["reason"] == "compiled graph" for gap in trial.gaps())


@pytest.mark.parametrize("how", ["watch", "hand", "nnx"])
def test_results_and_compilations_are_those_of_the_bare_training(tmp_path: Path, how: str) -> None:
    def train(hook: Any) -> tuple[list[bytes], int]:
        if how == "nnx":
            model = Net(nnx.Rngs(0))
            optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
            traces: list[int] = []

            def counted(*arguments: Any) -> Any:
                traces.append(1)
                return net_step(*arguments)

            net = nnx.jit(counted)
            step = hook.watch(net) if hook is not None else net
            found = [as_bytes(step(model, optimizer, X, Y)) for _ in range(6)]
            return sum(found, as_bytes(nnx.state(model, nnx.Param))), len(traces)
        case, params = plain(donate=how == "watch"), make_params()
        state = case.optimizer.init(params)
        step = hook.watch(case.step) if hook is not None and how == "watch" else case.step
        kept: list[bytes] = []
        for _ in range(6):
            params, state, loss, grads = step(params, state, X, Y)
            kept += as_bytes((loss, grads))
            if hook is not None and how == "hand":
                hook.step(loss=loss, grads=grads, params=params, opt_state=state)
        return kept + as_bytes((params, state)), len(case.traces) + case.step._cache_size()

    bare = train(None)
    with luff.jax.attach(run=tmp_path / "run", **EVERYTHING) as hook:
        watched = train(hook)
        assert hook.health()["hook_errors"] == 0
    assert bare == watched
    assert KEY is not None


def test_a_watched_function_is_used_as_the_compiled_one() -> None:
    compiled = jax.jit(lambda x: jnp.sin(x) * x)
    watched = Jitted(compiled, lambda function, args, kwargs: function(*args, **kwargs))
    for use in (
        lambda f: f(1.0),
        lambda f: jax.grad(f)(1.0),
        lambda f: jax.vmap(f)(jnp.ones(3))[0],
        lambda f: jax.jit(lambda g, x: g(x), static_argnums=0)(f, 1.0),
        lambda f: f.lower(1.0).compile()(1.0),
        lambda f: copy.copy(f)(1.0),
        lambda f: copy.deepcopy({"step": f})["step"](1.0),
    ):
        assert use(watched) == use(compiled)
