"""A call-back for estimators that accept scikit-learn's own call-backs (1.9 and later): each iteration is a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from luff._base_hook import Collections
from luff._codes import Role
from luff.corrections import Corrections
from luff.sklearn._hook import Hook, Model, hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Callback"]

_MAX_ROWS = 4096  # most rows for which the loss is computed


class Callback:
    """Watches ``LogisticRegression`` with its solver ``lbfgs``, and other estimators that accept call-backs::

        LogisticRegression().set_callbacks(luff.sklearn.Callback("runs/first")).fit(x, y)

    Parameters
    ----------
    run, collections, resume, on_stop, correct, **options
        As in `attach`.

    Attributes
    ----------
    hook
        Records custom scalars and tensors, and closes the run; None in a copy made for another process.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Collections = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        hook = Hook(run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options)
        self.hook: Hook | None = hooks.add(hook)

    # Clones of an estimator, also in other threads, share their call-back, so it holds no state of a fit.

    def setup(self, estimator: Any, context: Any) -> None:  # noqa: ARG002
        """Called when a fit begins."""
        if self.hook is not None:
            self.hook.enters(estimator, True)

    def teardown(self, estimator: Any, context: Any) -> None:  # noqa: ARG002
        """Called when a fit has ended, or raised."""
        if self.hook is not None:
            self.hook.leaves(self.hook.model_of(estimator), True)

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Does nothing: an iteration is recorded at its end."""

    def on_fit_task_end(
        self,
        estimator: Any,
        context: Any,
        *,
        X: Any = None,
        y: Any = None,
        fitted_estimator: Any = None,
    ) -> None:
        """Records an iteration. Raises `luff.StopTraining` if a finding stops the run."""
        # the fit itself, not one of its iterations
        whole = context is getattr(estimator, "_callback_fit_ctx", None)
        model = None if self.hook is None or whole else self.hook.model_of(estimator)
        if self.hook is None or model is None or fitted_estimator is None:
            return
        self.hook.record("callback", _step, model, fitted_estimator, X, y)
        self.hook.close_step()


def _step(hook: Hook, model: Model, estimator: Any, rows: Any, targets: Any) -> None:
    """Records loss and coefficients as the iteration left them."""
    kind = type(estimator).__name__
    hook.steps.array(f"{model.name}_weight", estimator.coef_, int(Role.WEIGHT), "", kind)
    hook.steps.array(f"{model.name}_bias", estimator.intercept_, int(Role.BIAS), "", kind)
    if targets is not None:
        count = min(len(targets), _MAX_ROWS)
        ids = np.searchsorted(estimator.classes_, np.asarray(targets)[:count])
        loss = _log_loss(rows[:count] @ estimator.coef_.T + estimator.intercept_, ids)
        hook.steps.scalar(f"{model.loss('log_loss')}_output_0", loss, int(Role.LOSS), "", "log_loss")


def _log_loss(scores: Any, ids: Any) -> float:
    """Returns the mean of -log(softmax(scores)) at the rows' classes; for a single column, of the logistic function.

    The estimator's own `predict_log_proba` would warn about a frame's column names, and about shares of 0.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    with np.errstate(all="ignore"):
        scores = scores - scores.max(axis=1, keepdims=True)
        shares = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return -float(np.mean(shares[np.arange(len(ids)), ids]))
