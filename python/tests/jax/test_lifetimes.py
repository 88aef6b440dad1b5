"""Several trainings in one process: each run gets its own, and nothing is kept."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import luff
import luff.jax


@jax.jit
def step(params: jax.Array) -> tuple[jax.Array, jax.Array]:
    return params - 0.1, params.sum()


def told(path: Path) -> tuple[int, str, bool]:
    with luff.open_trial(path) as trial:
        return len(trial.steps("TRAIN")), trial.outcome, "a newer hook" in trial.outcome_reason


def train(hook: luff.jax.Hook, steps: int = 3) -> None:
    params = jnp.ones(4)
    for _ in range(steps):
        params, loss = step(params)
        hook.step(loss=loss, params={"weight": params})


def test_a_newer_hook_takes_the_place(tmp_path: Path) -> None:
    for number in range(3):
        hook = luff.jax.attach(run=tmp_path / str(number))
        train(hook)
    hook.close()
    assert [told(tmp_path / str(n)) for n in range(3)] == [(3, "completed", n < 2) for n in range(3)]


def test_a_hook_goes_with_who_holds_it(tmp_path: Path) -> None:
    hook = luff.jax.attach(run=tmp_path / "run")
    reference = weakref.ref(hook)
    train(hook)
    watched = hook.watch(step)
    del hook
    assert reference() is not None  # the function holds it
    del watched
    gc.collect()
    assert reference() is None
    assert told(tmp_path / "run") == (3, "completed", False)


def test_a_hook_that_was_set_up_in_a_function_stays(tmp_path: Path) -> None:
    def set_up() -> None:
        hook = luff.jax.attach(run=tmp_path / "run")
        hook.start({"weight": jnp.ones(4)})

    set_up()
    gc.collect()
    found = luff.jax.get_hook()
    assert found is not None
    train(found)
    found.close()
    assert told(tmp_path / "run")[:2] == (3, "completed")


def test_a_hook_that_is_asked_for_stays(tmp_path: Path) -> None:
    luff.jax.attach(run=tmp_path / "run")
    gc.collect()
    for _ in range(3):
        found = luff.jax.get_hook()
        assert found is not None
        train(found, 1)
        del found
        gc.collect()
    luff.jax.get_hook().close()  # type: ignore[union-attr]
    assert told(tmp_path / "run") == (3, "completed", False)
