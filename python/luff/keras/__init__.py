"""Luff for Keras 3, on TensorFlow, JAX and PyTorch.

Two lines attach it to a training::

    import luff.keras

    model.fit(x, y, callbacks=[luff.keras.Callback(run="runs/first")])

``luff run -- python train.py`` does the same for a script that never mentions Luff. Either way, the training computes
bit by bit what it computes without Luff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from luff._base_hook import Collections
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.keras import _wraps
from luff.keras._hook import Callback, hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = [
    "Callback",
    "Hook",
    "StopTraining",
    "attach",
    "attach_to_all",
    "get_hook",
    "save_scalar",
    "save_tensor",
]

Hook = Callback  #  The type that `attach` and `get_hook` return, as in other frameworks.

_wraps.install()


def attach(
    model: Any,
    *,
    run: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Callback:
    """Attaches Luff to a model: `fit`, `evaluate`, `predict` and the methods for single batches.

    A hook that the model had before ends; its run says so.

    Parameters
    ----------
    model
        A `keras.Model`.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections, resume, on_stop, correct, **options
        As in `Callback`.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"model is a {type(model).__name__}; expected a keras.Model")
    hook = Callback(run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options)
    hooks.add(hook, [model])
    return hook


attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
