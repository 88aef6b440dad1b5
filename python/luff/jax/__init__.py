"""Luff for JAX: plain functions with Optax, and Flax NNX.

Two lines attach it to a training::

    import luff.jax

    hook = luff.jax.attach(run="runs/first")
    train_step = hook.watch(train_step)

or, where the loop would rather say itself what it has computed, ``hook.step(loss=loss, params=params)`` in every step.
``luff run -- python train.py`` does without a change to the script. Either way results are bit by bit what they are
without, and what the training compiles stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from luff import corrections
from luff._base_hook import Collections, choose_run, make_config
from luff._hook import run_from_environment
from luff.errors import StopTraining
from luff.jax import _auto
from luff.jax._hook import Hook
from luff.jax._summaries import summarize

__all__ = [
    "Hook",
    "StopTraining",
    "attach",
    "attach_to_all",
    "get_hook",
    "save_scalar",
    "save_tensor",
    "summarize",
]

_attached: Hook | None = None
_default: Hook | None = None


def attach(
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    collections: Collections = None,
    on_stop: Callable[[], object] | None = None,
    correct: corrections.Corrections | None = None,
    **options: Any,
) -> Hook:
    """Opens a run that a training's steps are recorded into.

    Parameters
    ----------
    run
        Directory of the run; under ``luff run`` the supervisor's run is taken instead.
    resume
        Go on in a run that exists.
    collections
        What to record besides the defaults: names, or settings by name.
    on_stop
        Called before `luff.StopTraining` is raised.
    correct
        What may be corrected.
    options
        ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, and all else of docs/capture.md.

    Returns
    -------
    Hook
        `Hook.watch` wraps a function that trains a step; `Hook.step` records one by hand.

    Raises
    ------
    LuffError
        When the run exists already, cannot be created, or the configuration is wrong.
    """
    global _attached
    if _attached is not None and _attached.live:
        _attached.close()
    hook = Hook(choose_run(run, resume, make_config(collections, options)), on_stop, correct)
    hook.open_now()
    _attached = hook
    return hook


def attach_to_all() -> Hook | None:
    """Watches whatever this process trains; used by ``luff run``. None if no supervisor named a run."""
    global _default
    options = run_from_environment()
    if options is None:
        return None
    if _default is None:
        _default = Hook(options)
    _auto.install(lambda: _default if _attached is None and _default is not None and _default.live else None)
    return _default


def get_hook() -> Hook | None:
    """The hook attached last, or that of ``luff run``, while it is open."""
    hook = _attached if _attached is not None else _default
    return hook if hook is not None and hook.live else None


def save_scalar(name: str, value: float) -> None:
    """Records a number in the current step, or the next; nothing happens where Luff is not attached."""
    hook = get_hook()
    if hook is not None:
        hook.save_scalar(name, value)


def save_tensor(name: str, value: Any) -> None:
    """Records an array in the current step, or the next; nothing happens where Luff is not attached."""
    hook = get_hook()
    if hook is not None:
        hook.save_tensor(name, value)
