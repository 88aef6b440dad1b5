"""Luff for training loops written in NumPy.

A few lines attach it to a training::

    import luff.numpy

    hook = luff.numpy.attach(weights, settings, run="runs/first")
    for x, y in batches:
        with hook.step() as step:
            loss, gradients = loss_and_gradients(weights, x, y)
            step.loss(loss)
            step.gradients(gradients)
            for name, gradient in gradients.items():
                weights[name] -= settings["lr"] * gradient

NumPy does not know what a training step is, so ``luff run -- python train.py`` records only a script that has these
lines. The training computes bit by bit what it computes without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from luff._base_hook import Collections, choose_run, make_config
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.numpy._hook import Hook, Step, hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Hook", "Step", "StopTraining", "attach", "get_hook", "save_scalar", "save_tensor"]


def attach(
    weights: Mapping[str, Any],
    settings: MutableMapping[str, Any] | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Opens a run into which the steps of a training are recorded.

    The run lives as long as the hook. Without options, it contains summaries of weights and gradients and the loss,
    of every step.

    Parameters
    ----------
    weights
        Arrays by name. Each TRAIN step reads them when it begins. An array may be updated in place or replaced.
    settings
        Numbers by name that updates use, e.g. ``{"lr": 0.1}``; recorded with each update.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections
        What is saved beyond the default: names of collections (raw values and summaries), or settings by name.
    resume
        Whether to continue an existing run.
    on_stop
        Called before `StopTraining` is raised, e.g. to write a checkpoint, in addition to those of `luff.on_stop`.
    correct
        What Luff may correct when a finding asks for it; by default what was passed to `luff.corrections.accept`.
        ``lower_lr=True`` multiplies ``settings["lr"]``.
    **options
        Capture settings: ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md).

    Returns
    -------
    Hook
        Its `step` records a step.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """
    if not isinstance(weights, Mapping):
        raise InvalidArgumentError(f"weights is a {type(weights).__name__}; expected arrays by name")
    chosen = choose_run(run, resume, make_config(collections, options))
    hook = Hook(chosen, weights, settings, on_stop, correct)
    hook.open_now()
    return hooks.add(hook)


get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
