"""What all calls of a function that trains have in common: results that are dropped, one key for all random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import luff
import luff.jax
import numpy as np
import optax
import pytest
from jax_cases import KEY, X, Y, loss_of, make_params
from luff.jax._facts import CALLS
from luff.jax._hook import _install

TX = optax.adam(1e-2)
STEPS = CALLS + 6


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    _install()  # the wrappers of `luff run`
    yield
    hook = luff.jax.get_hook()
    if hook is not None:
        hook.close()


def make_step(noise: Any = None, anew: bool = False, optimizer: Any = TX) -> Any:
    @jax.jit
    def train_step(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        if noise is not None:
            x = noise(x, key)
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        if anew:
            state = optimizer.init(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step


def dropout(x: Any, key: Any) -> Any:
    return x * jax.random.bernoulli(key, 0.9, x.shape)


def folded(x: Any, key: Any) -> Any:
    return dropout(x, jax.random.fold_in(key, (x.sum() * 1000).astype(jnp.int32)))


def told(tmp_path: Path, step: Any, loop: Any, optimizer: Any = TX) -> list[tuple[str, bool]]:
    """Runs a loop of `STEPS` steps; returns faults that were told, and whether they were told to be over."""
    params = make_params()
    with luff.jax.attach(run=tmp_path / "run") as hook:
        loop(hook.watch(step), params, optimizer.init(params))
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        events = [event for event in trial.events() if event["kind"] == "training_call"]
        assert len(trial.steps("TRAIN")) >= STEPS
    return [(event["fault"], event["over"]) for event in events]


def batch(number: int) -> tuple[Any, Any]:
    return X + number, Y - number


def healthy(step: Any, params: Any, state: Any) -> None:
    key = jax.random.PRNGKey(0)
    for number in range(STEPS):
        key, sub = jax.random.split(key)
        params, state, _ = step(params, state, *batch(number), sub)


def drops_params(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        new, state, _ = step(params, state, *batch(number), KEY)


def drops_everything(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        step(params, state, *batch(number), KEY)


def drops_state(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        params, _, _ = step(params, state, *batch(number), KEY)


def notices_late(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        new, state, _ = step(params, state, *batch(number), KEY)
        params = new if number > CALLS + 1 else params


def times_it(step: Any, params: Any, state: Any) -> None:
    x, y = batch(0)
    for _ in range(STEPS):
        step(params, state, x, y, KEY)


def keeps_all(step: Any, params: Any, state: Any) -> None:
    """As clients of federated learning, whose weights are averaged in the end."""
    kept = [step(params, state, *batch(number), KEY)[0] for number in range(STEPS)]
    jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *kept)


def same_key(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        params, state, _ = step(params, state, *batch(number), KEY)


def same_old_key(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):  # made anew each time, of one value
        params, state, _ = step(params, state, *batch(number), jax.random.PRNGKey(3))


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (healthy, []),
        (drops_params, [("params_dropped", False)]),
        (drops_everything, [("params_dropped", False)]),
        (drops_state, [("state_dropped", False)]),
        (notices_late, [("params_dropped", False), ("params_dropped", True)]),
        (times_it, []),
        (keeps_all, []),
    ],
)
def test_results_that_are_dropped(tmp_path: Path, loop: Any, expected: Any) -> None:
    assert told(tmp_path, make_step(), loop) == expected


def test_a_state_that_is_empty_is_never_dropped(tmp_path: Path) -> None:
    plain = optax.sgd(1e-3)
    assert told(tmp_path, make_step(optimizer=plain), drops_state, plain) == []


@pytest.mark.parametrize(
    ("noise", "loop", "expected"),
    [
        (dropout, healthy, []),
        (dropout, same_key, [("same_key", False)]),
        (dropout, same_old_key, [("same_key", False)]),
        (None, same_key, []),  # it is passed, and nothing is drawn from it
        (folded, same_key, []),
    ],
)
def test_one_key_for_all_steps(tmp_path: Path, noise: Any, loop: Any, expected: Any) -> None:
    assert told(tmp_path, make_step(noise), loop) == expected


def test_a_state_that_is_made_in_each_call(tmp_path: Path) -> None:
    assert told(tmp_path, make_step(anew=True), healthy) == [("state_anew", False)]
    with luff.open_trial(
        tmp_path / "run"
    ) as trial:  # its count stands still, and each call updates nevertheless
        updates = [event for event in trial.events() if event["kind"] == "optimizer_step"]
    assert len(updates) == STEPS


def test_a_state_that_only_skips_counts_on(tmp_path: Path) -> None:
    skips = optax.apply_if_finite(TX, 5)

    def loop(step: Any, params: Any, state: Any) -> None:
        for number in range(STEPS):
            x, y = batch(number)
            params, state, _ = step(params, state, x * np.nan if number % 20 == 3 else x, y, KEY)

    assert told(tmp_path, make_step(optimizer=skips), loop, skips) == []


@pytest.mark.parametrize("before", ["softmax", "log_softmax", ""])
def test_a_softmax_before_the_loss(tmp_path: Path, before: str) -> None:
    @jax.jit
    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_of_scores(params: Any) -> Any:
            scores = x @ params["w"]
            attended = jax.nn.softmax(scores, axis=0)  # another one, that is no argument of the loss
            scores = getattr(jax.nn, before)(scores) if before else scores
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean() + 0 * attended.sum()

        loss, grads = jax.value_and_grad(loss_of_scores)(params)
        updates, state = TX.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = {"w": jnp.ones((8, 3))}
    with luff.jax.attach(run=tmp_path / "run") as hook:
        step, state = hook.watch(train_step), TX.init(params)
        for _ in range(3):
            params, state, _ = step(params, state, X, jnp.zeros(64, jnp.int32))
    with luff.open_trial(tmp_path / "run") as trial:
        events = [event for event in trial.events() if event["kind"] == "loss_input"]
    assert len(events) == (before == "softmax")
