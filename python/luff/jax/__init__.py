"""Luff for JAX: plain functions with Optax, and Flax NNX.

Two lines attach it to a training::

    import luff.jax

    hook = luff.jax.attach(run="runs/first")
    train_step = hook.watch(train_step)

or, if the loop itself reports what it has computed, ``hook.step(loss=loss, params=params)`` in every step.
``luff run -- python train.py`` needs no change to the script. Either way, results are bit by bit the same as without
Luff, and the training compiles the same functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from luff import corrections
from luff._base_hook import Collections, choose_run, make_config
from luff.errors import StopTraining
from luff.jax._hook import Hook, hooks
from luff.jax._summaries import summarize

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

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


def attach(
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    collections: Collections = None,
    on_stop: Callable[[], object] | None = None,
    correct: corrections.Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Opens a run into which a training's steps are recorded. The hook attached before ends; its run says so.

    The hook lives while something refers to it, or to a function that it watches.

    Parameters
    ----------
    run
        Directory of the run; under ``luff run`` the supervisor's run is used instead.
    resume
        Whether to continue a run that exists.
    collections
        What to record in addition to the defaults: names, or settings by name.
    on_stop
        Called before `luff.StopTraining` is raised.
    correct
        Corrections that are allowed.
    options
        ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, and all other settings of docs/capture.md.

    Returns
    -------
    Hook
        Its `watch` wraps a function that trains a step; its `step` records one by hand.

    Raises
    ------
    LuffError
        When the run cannot be created, or the configuration is wrong.
    """
    hook = Hook(choose_run(run, resume, make_config(collections, options)), on_stop, correct)
    hook.open_now()
    return hooks.attached(hook)


attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
