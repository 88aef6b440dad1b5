"""GradientBoosting*: each round is a step, reported by the monitor that scikit-learn calls after it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np

from luff._boosting._recorder import Metric
from luff._boosting._trainings import Facts
from luff._patch import Method, once, wrap
from luff.sklearn._hook import Hook
from luff.sklearn._wraps import Patch, hook_of

__all__ = ["PATCH", "facts_of", "feature_names"]


@once
def _install(module: Any) -> None:
    wrap(module.BaseGradientBoosting, "_fit_stages", _watched)


def _watched(original: Method) -> Method:
    signature = inspect.signature(original)

    def fit_stages(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        if hook is None:
            return original(self, *args, **kwargs)
        bound = hook.guarded("begin", functools.partial(signature.bind, self, *args, **kwargs))
        if bound is None:
            return original(self, *args, **kwargs)
        rounds = _Rounds(hook, self, bound.arguments)
        bound.arguments["monitor"] = rounds
        hook.while_live("begin", rounds.begins)
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            hook.trainings.ended(self)

    return fit_stages


PATCH = Patch("sklearn.ensemble._gb", ("BaseGradientBoosting",), _install)


class _Rounds:
    """Called after each round; also calls the user's own monitor."""

    def __init__(self, hook: Hook, model: Any, arguments: dict[str, Any]) -> None:
        self._hook = hook
        self._model = model
        self._monitor = arguments.get("monitor")
        self._first = int(arguments.get("begin_at_stage", 0))
        self._rows = int(arguments["X"].shape[0])
        self._done = self._first
        self._validation = arguments.get("X_val"), arguments.get("y_val"), arguments.get("sample_weight_val")
        self._scores: Any = None  # raw predictions for the validation rows

    def begins(self) -> None:
        """Begins the training."""
        planned = int(self._model.n_estimators) - self._first
        self._hook.begin_rounds(self._model, self._first, planned)

    def __call__(self, stage: int, model: Any, values: dict[str, Any]) -> Any:
        answer = None if self._monitor is None else self._monitor(stage, model, values)
        self._done = int(stage) + 1
        self._hook.trainings.round_ended(
            model,
            model,
            lambda: self._done,
            lambda: self._metrics(stage, float(values.get("factor", 1))),
            self._facts,
        )
        return answer

    def _metrics(self, stage: int, factor: float) -> list[Metric]:
        model = self._model
        found: list[Metric] = [("train", model.loss, float(model.train_score_[stage]), None)]
        if model.subsample < 1.0:
            found.append(("out_of_bag", f"{model.loss}-score", float(model.oob_scores_[stage]), None))
        if self._validation[0] is not None:
            found.append(("validation", model.loss, factor * self._validation_loss(stage), None))
        return found

    def _validation_loss(self, stage: int) -> float:
        """Computes the loss as scikit-learn does for its early stopping, from predictions updated round by round."""
        from sklearn.ensemble._gradient_boosting import predict_stage

        model = self._model
        rows, wanted, weight = self._validation
        if self._scores is None:
            self._scores = np.array(model._raw_predict_init(rows))
            for before in range(stage):
                predict_stage(model.estimators_, before, rows, model.learning_rate, self._scores)
        predict_stage(model.estimators_, stage, rows, model.learning_rate, self._scores)
        return float(model._loss(wanted, self._scores, weight))

    def _facts(self) -> Facts:
        extra = self._validation[0]
        return facts_of(self._model, self._rows, None if extra is None else int(extra.shape[0]))


def facts_of(model: Any, rows: int, validation_rows: int | None) -> Facts:
    """Describes a boosted model."""
    evaluations = [{"name": "train", "training": True, "rows": rows}]
    if validation_rows is not None:
        evaluations.append({"name": "validation", "training": False, "rows": validation_rows})
    parameters = {key: value for key, value in model.get_params(deep=False).items() if _plain(value)}
    return Facts(
        booster=type(model).__name__,
        features=feature_names(model),
        parameters={**parameters, "objective": model.loss},
        hyperparameters=parameters,
        rows=rows,
        evaluations=evaluations,
        training_sets=frozenset(("train",)),
    )


def feature_names(model: Any) -> list[str]:
    """Returns the names of the features; ``f0``, ``f1``, … if they have none."""
    names = getattr(model, "feature_names_in_", None)
    return [f"f{i}" for i in range(int(model.n_features_in_))] if names is None else [str(n) for n in names]


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, np.number))
