"""A call-back for estimators that take scikit-learn's own (1.9 and later): each iteration is a step."""

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

_MAX_ROWS = 4096  # that the loss is computed of


class Callback:
    """Watches ``LogisticRegression`` with its solver ``lbfgs``, and what takes call-backs like it::

        LogisticRegression().set_callbacks(luff.sklearn.Callback("runs/first")).fit(x, y)

    Parameters
    ----------
    run, collections, resume, on_stop, correct, **options
        As those of `attach`.

    Attributes
    ----------
    hook
        For custom scalars and tensors, and to close the run; None in a copy that another process got.

    Raises
    ------
    LuffError
        When the run exists already or cannot be created, or a setting is wrong.
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
        self._model: Model | None = None  # the training under way

    def setup(self, estimator: Any, context: Any) -> None:  # noqa: ARG002
        """A fit begins."""
        if self.hook is not None:
            self._model = self.hook.enters(estimator, True)

    def teardown(self, estimator: Any, context: Any) -> None:  # noqa: ARG002
        """A fit has ended, or raised."""
        model, self._model = self._model, None
        if self.hook is not None:
            self.hook.leaves(model, True)

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Nothing of an iteration is recorded before its end."""

    def on_fit_task_end(
        self,
        estimator: Any,  # noqa: ARG002
        context: Any,
        *,
        X: Any = None,
        y: Any = None,
        fitted_estimator: Any = None,
    ) -> None:
        """Records an iteration. Raises `luff.StopTraining` if a finding stops the run."""
        root = getattr(context, "parent", None) is None  # the whole fit
        if self.hook is None or self._model is None or fitted_estimator is None or root:
            return
        self.hook.record("callback", _step, self._model, fitted_estimator, X, y)
        self.hook.close_step()


def _step(hook: Hook, model: Model, estimator: Any, rows: Any, targets: Any) -> None:
    """Loss and coefficients as the iteration left them."""
    kind = type(estimator).__name__
    hook.steps.array(f"{model.name}_weight", estimator.coef_, int(Role.WEIGHT), "", kind)
    hook.steps.array(f"{model.name}_bias", estimator.intercept_, int(Role.BIAS), "", kind)
    if targets is not None and hasattr(estimator, "predict_log_proba"):
        count = min(len(targets), _MAX_ROWS)
        shares = np.asarray(estimator.predict_log_proba(rows[:count]))
        ids = np.searchsorted(estimator.classes_, np.asarray(targets)[:count])
        loss = -float(np.mean(shares[np.arange(count), ids]))
        hook.steps.scalar(f"{model.loss('log_loss')}_output_0", loss, int(Role.LOSS), "", "log_loss")
