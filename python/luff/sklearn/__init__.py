"""Luff for scikit-learn's estimators that train step by step.

Two lines attach it to an estimator::

    import luff.sklearn

    luff.sklearn.attach(estimator, run="runs/first")

``luff run -- python train.py`` needs no change to the script. Either way, the fitted estimator is bit by bit the same
as without Luff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from luff._base_hook import Collections
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.sklearn import _wraps
from luff.sklearn._callback import Callback
from luff.sklearn._hook import Hook, hooks
from luff.sklearn._search import search

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
    "search",
]


def attach(
    estimator: Any,
    run: str | os.PathLike[str] | None = None,
    *,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Records what an estimator trains, from its next call of ``fit`` or ``partial_fit`` on.

    A hook that the estimator had before ends; its run says so.

    Parameters
    ----------
    estimator
        An estimator that trains step by step, or a pipeline that ends with one.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections
        What is saved beyond the defaults: names (``weights``, ``gradients``, ``outputs``, ``feature_importance``,
        ``trees``, …), or settings by name.
    resume
        Whether to continue an existing run.
    on_stop
        Called before `StopTraining` is raised, in addition to those of `luff.on_stop`.
    correct
        What Luff may correct when a finding asks for it; by default what was passed to `luff.corrections.accept`.
        ``lower_lr`` must be a function: Luff cannot change an estimator's rate while it trains.
    **options
        Capture settings: ``save_interval``, ``start_step``, ``end_step``, ``save_all``, … (docs/capture.md).

    Raises
    ------
    InvalidArgumentError
        If the estimator does not train step by step, as far as Luff knows.
    LuffError
        When the run cannot be created, or a setting is wrong.
    """
    last = estimator.steps[-1][1] if isinstance(getattr(estimator, "steps", None), list) else estimator
    if not _wraps.listen_to(last):
        raise InvalidArgumentError(
            f"a {type(last).__name__} does not train step by step as far as Luff knows; expected an estimator with "
            "partial_fit or warm_start"
        )
    hook = Hook(run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options)
    return hooks.add(hook, [last])


attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
