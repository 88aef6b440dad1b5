"""What all calls of a function that trains have in common: a state that is dropped."""

from __future__ import annotations

import pickle
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


def make_step(anew: bool = False, optimizer: Any = TX) -> Any:
    @jax.jit
    def train_step(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        if anew:
            state = optimizer.init(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step


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
    """As programs that only add the results up: whether nothing is learnt cannot be seen from outside."""
    for number in range(STEPS):
        step(params, state, *batch(number), KEY)


def drops_state(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        params, _, _ = step(params, state, *batch(number), KEY)


def notices_late(step: Any, params: Any, state: Any) -> None:
    for number in range(STEPS):
        params, new, _ = step(params, state, *batch(number), KEY)
        state = new if number > CALLS + 1 else state


def keeps_states(step: Any, params: Any, state: Any) -> None:
    kept = []
    for number in range(STEPS):
        params, new, _ = step(params, state, *batch(number), KEY)
        kept.append(new)


def clients(step: Any, params: Any, state: Any) -> None:
    """Each of several clients begins with a new state, on purpose."""
    for round_number in range(STEPS // 5):
        total = None
        for client in range(5):
            own, own_state = params, state
            own, own_state, _ = step(own, own_state, *batch(5 * round_number + client), KEY)
            total = own if total is None else jax.tree.map(jnp.add, total, own)
        params = jax.tree.map(lambda leaf: leaf / 5, total)


def in_place(step: Any, params: Any, state: Any) -> None:
    """Parameters and a state in memory that is shared with others."""
    params, state = (jax.tree.map(np.array, tree) for tree in (params, state))
    for number in range(STEPS):
        new, new_state, _ = step(params, state, *batch(number), KEY)
        jax.tree.map(lambda old, leaf: np.copyto(old, np.asarray(leaf)), (params, state), (new, new_state))


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (healthy, []),
        (drops_params, []),
        (drops_state, [("state_dropped", False)]),
        (notices_late, [("state_dropped", False), ("state_dropped", True)]),
        (keeps_states, []),
        (clients, []),
        (in_place, []),
    ],
)
def test_a_state_that_is_dropped(tmp_path: Path, loop: Any, expected: Any) -> None:
    assert told(tmp_path, make_step(), loop) == expected


def test_a_state_that_is_dropped_in_two_runs(tmp_path: Path) -> None:
    step = make_step()
    assert told(tmp_path / "one", step, drops_state) == [("state_dropped", False)]
    assert told(tmp_path / "two", step, drops_state) == [("state_dropped", False)]
    assert told(tmp_path / "three", step, healthy) == []


def test_a_new_state_for_each_loop_inside(tmp_path: Path) -> None:
    @jax.jit
    def epoch(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        def one(carried: Any, _: Any) -> Any:
            params, state = carried
            loss, grads = jax.value_and_grad(loss_of)(params, x, y)
            updates, state = TX.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(one, (params, state), None, length=3)
        return params, state, losses[-1]

    assert told(tmp_path, epoch, drops_state) == []


def test_a_state_that_is_empty_is_never_dropped(tmp_path: Path) -> None:
    plain = optax.sgd(1e-3)
    assert told(tmp_path, make_step(optimizer=plain), drops_state, plain) == []


def test_a_state_that_is_made_in_each_call(tmp_path: Path) -> None:
    assert told(tmp_path, make_step(anew=True), healthy) == [("state_anew", False)]
    with luff.open_trial(
        tmp_path / "run"
    ) as trial:  # its count stands still, and each call updates nevertheless
        updates = [event for event in trial.events() if event["kind"] == "optimizer_step"]
    assert len(updates) == STEPS


def test_functions_that_people_keep_are_their_own() -> None:
    for function in (jax.nn.softmax, jax.random.normal, optax.softmax_cross_entropy):
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_state_that_only_skips_counts_on(tmp_path: Path) -> None:
    skips = optax.apply_if_finite(TX, 5)

    def loop(step: Any, params: Any, state: Any) -> None:
        for number in range(STEPS):
            x, y = batch(number)
            params, state, _ = step(params, state, x * np.nan if number % 20 == 3 else x, y, KEY)

    assert told(tmp_path, make_step(optimizer=skips), loop, skips) == []
