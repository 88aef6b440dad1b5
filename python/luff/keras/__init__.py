"""Luff for Keras 3, on TensorFlow, JAX and PyTorch.

Two lines attach it to a training::

    import luff.keras

    model.fit(x, y, callbacks=[luff.keras.Hook(run="runs/first")])

``luff run -- python train.py`` does the same for a script that never mentions Luff. Either way the training computes
bit by bit what it computes without.
"""

from __future__ import annotations

import os
from typing import Any

from luff._base_hook import Collections
from luff._hook import run_from_environment
from luff.errors import InvalidArgumentError, StopTraining
from luff.keras import _wraps
from luff.keras._hook import Hook, hooks

__all__ = ["Hook", "StopTraining", "attach", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]

_wraps.install()


def attach(
    model: Any, *, run: str | os.PathLike[str] | None = None, collections: Collections = None, **options: Any
) -> Hook:
    """Attaches Luff to a model: `fit`, `evaluate`, `predict` and the methods for single batches.

    Parameters
    ----------
    model
        A `keras.Model`.
    run
        Directory of the run, created; it must not exist unless ``resume``. Under ``luff run`` the supervisor's.
    collections, **options
        As those of `Hook`.

    Raises
    ------
    LuffError
        When the run exists already or cannot be created, or a setting is wrong.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"model is a {type(model).__name__}; expected a keras.Model")
    hook = Hook(run, collections=collections, **options)
    hooks.bind(model, hook)
    return hook


def attach_to_all() -> Hook | None:
    """Watches whatever this process trains; used by ``luff run``. None if no supervisor named a run."""
    if hooks.default is None:
        options = run_from_environment()
        if options is None:
            return None
        hooks.add(Hook(_options=options), default=True)
    return hooks.default


def get_hook() -> Hook | None:
    """The hook in whose step this thread is; else that of the process, or the only one."""
    return hooks.current()


def save_scalar(name: str, value: float) -> None:
    """Records a number in the current step, or the next; nothing happens where Luff is not attached."""
    hook = hooks.current()
    if hook is not None:
        hook.save_scalar(name, value)


def save_tensor(name: str, value: Any) -> None:
    """Records an array in the current step, or the next; nothing happens where Luff is not attached."""
    hook = hooks.current()
    if hook is not None:
        hook.save_tensor(name, value)
