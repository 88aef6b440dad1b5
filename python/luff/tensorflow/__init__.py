"""Luff for TensorFlow: the user's own training loops, with `tf.GradientTape` and Keras' optimizers.

Two lines attach it to a training::

    import luff.tensorflow

    hook = luff.tensorflow.attach(run="runs/first")

Each pass through the tape is a step: eagerly, or as a call of a `tf.function` in which an optimizer updates. `fit`
and similar methods make steps too, as with `luff.keras`. ``luff run -- python train.py`` does the same for a script
that never mentions Luff. Either way, the training computes bit by bit what it computes without Luff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from luff._base_hook import Collections
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.keras import Hook, attach_to_all, get_hook, save_scalar, save_tensor
from luff.keras._hook import hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Hook", "StopTraining", "attach", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]


def attach(
    model: Any = None,
    *,
    run: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Attaches Luff to the training loops of this process.

    Parameters
    ----------
    model
        A Keras model, if it exists already: names its variables. Models that a loop calls are found.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections, resume, on_stop, correct, **options
        As in `luff.keras.Callback`.

    Returns
    -------
    Hook
        Records custom scalars and tensors, and closes the run.

    Raises
    ------
    LuffError
        When the run cannot be created, a setting is wrong, or Keras uses another backend.
    """
    if keras.backend.backend() != "tensorflow":
        raise InvalidArgumentError(
            f"Keras uses {keras.backend.backend()}; expected tensorflow (KERAS_BACKEND=tensorflow)"
        )
    hook = Hook(run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options)
    hooks.add(hook, [model] if isinstance(model, keras.Model) else (), default=True)
    if isinstance(model, keras.Model):
        if model.built:
            hook.guarded("model", hook.learn, model)
    return hook
