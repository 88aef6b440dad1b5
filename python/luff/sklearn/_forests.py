"""Forests that grow with ``warm_start``: each ``fit`` is a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff._patch import Method, once, wrap
from luff.sklearn._boosted import feature_names
from luff.sklearn._hook import Hook, Model
from luff.sklearn._wraps import Patch, hook_of

__all__ = ["PATCH"]


@once
def _install(module: Any) -> None:
    wrap(module.BaseForest, "fit", _stepping)


def _stepping(original: Method) -> Method:
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        if hook is None or (hook.watches_all and not self.warm_start):
            return original(self, *args, **kwargs)
        model = hook.enters(self, not (self.warm_start and hasattr(self, "estimators_")))
        try:
            result = original(self, *args, **kwargs)
            if model is not None:
                hook.record("forest", _step, model, self)
                hook.close_step()
        finally:
            hook.leaves(model)
        return result

    return fit


PATCH = Patch("sklearn.ensemble._forest", ("BaseForest",), _install)


def _step(hook: Hook, model: Model, estimator: Any) -> None:
    hook.steps.scalar(f"scalar/{model.name}_trees", len(estimator.estimators_))
    score = getattr(estimator, "oob_score_", None)
    if isinstance(score, (float, np.floating)):
        hook.steps.scalar(f"scalar/{model.name}_oob_score", float(score))
    lead = "" if model.number == 0 else f"{model.name}/"
    names = [f"{lead}feature_importance/impurity/{feature}" for feature in feature_names(estimator)]
    if any(hook.trainings.wanted()(name) for name in names[:1000]):
        for name, share in zip(names, estimator.feature_importances_.tolist(), strict=True):
            if hook.steps.due(name):
                hook.steps.scalar(name, share, 0)
