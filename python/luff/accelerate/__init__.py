"""Luff for Hugging Face Accelerate.

Two lines attach it to a training, after ``prepare``::

    import luff.accelerate

    hook = luff.accelerate.attach(accelerator, run="runs/first", checkpoint="stopped")

or, if the script uses trackers, ``Accelerator(log_with=luff.accelerate.Tracker("runs/first"))``.
``luff run -- python train.py`` needs no change to the script. The loop is the script's own, so steps, modes and
stops are those of `luff.torch`; what `accelerator.log` is given is recorded as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import luff.torch
from luff._base_hook import Collections
from luff.accelerate import _log
from luff.accelerate._tracker import Tracker
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.torch import Hook, get_hook, save_scalar, save_tensor
from luff.torch.patches import _functional

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = [
    "Hook",
    "StopTraining",
    "Tracker",
    "attach",
    "attach_to_all",
    "get_hook",
    "save_scalar",
    "save_tensor",
]

_log.install()


def attach(
    accelerator: Any,
    *,
    run: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Attaches Luff to what an accelerator has prepared.

    Parameters
    ----------
    accelerator
        The accelerator, after its `prepare`.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    checkpoint
        Directory for `accelerator.save_state`, called in all processes before a finding stops the training.
    collections, resume, on_stop, correct, **options
        As in `luff.torch.attach`.

    Raises
    ------
    LuffError
        When nothing was prepared, when the run cannot be created, or a setting is wrong.
    """
    models = list(getattr(accelerator, "_models", ()))
    if not models:
        raise InvalidArgumentError(
            "the accelerator has prepared no model; call accelerator.prepare(model, ...) first"
        )
    optimizers = [getattr(o, "optimizer", o) for o in getattr(accelerator, "_optimizers", ())]

    def stopped() -> None:
        try:
            if checkpoint is not None:
                accelerator.save_state(os.fspath(checkpoint))
        finally:
            if on_stop is not None:
                on_stop()

    _functional.install()
    hook = luff.torch.attach(
        models[0],
        optimizers,
        run=run,
        collections=collections,
        resume=resume,
        on_stop=stopped,
        correct=correct,
        **options,
    )
    for model in models[1:]:
        hook.watch(model)
    return hook


def attach_to_all() -> None:
    """Watches whatever this process trains; used by ``luff run``."""
    luff.torch.attach_to_all()
