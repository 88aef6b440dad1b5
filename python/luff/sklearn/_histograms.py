"""HistGradientBoosting*: each round is a step. Losses are recorded if it may stop early: otherwise it has none."""

from __future__ import annotations

import threading
from typing import Any

from luff._boosting._recorder import Metric
from luff._boosting._trainings import Facts
from luff._patch import Method, once, wrap
from luff.sklearn._boosted import facts_of
from luff.sklearn._hook import Hook
from luff.sklearn._wraps import Patch, hook_of

__all__ = ["PATCH"]

_local = threading.local()  # the running training


@once
def _install(module: Any) -> None:
    kind = module.BaseHistGradientBoosting
    wrap(kind, "fit", _watched)
    for name in ("_check_early_stopping_loss", "_check_early_stopping_scorer"):
        wrap(kind, name, _checked)
    wrap(module.TreeGrower, "make_predictor", _growing)


def _watched(original: Method) -> Method:
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        if hook is None:
            return original(self, *args, **kwargs)
        before = getattr(_local, "rounds", None)
        rounds = _local.rounds = _Rounds(hook, self, args[0] if args else kwargs.get("X"))
        try:
            result = original(self, *args, **kwargs)
            rounds.scored()  # ends the last round, if it has no scores
            return result
        finally:
            _local.rounds = before
            hook.trainings.ended(self)

    return fit


def _growing(original: Method) -> Method:
    def make_predictor(self: Any, *args: Any, **kwargs: Any) -> Any:
        predictor = original(self, *args, **kwargs)
        rounds = getattr(_local, "rounds", None)
        if rounds is not None:
            rounds.tree()
        return predictor

    return make_predictor


PATCH = Patch(
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting", ("BaseHistGradientBoosting",), _install
)


def _checked(original: Method) -> Method:
    def check(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        rounds = getattr(_local, "rounds", None)
        if rounds is not None and rounds.model is self:
            rounds.scored()
        return answer

    return check


class _Rounds:
    """Counts the trees of a training; a round ends with its scores, or with the first tree of the next round."""

    def __init__(self, hook: Hook, model: Any, rows: Any) -> None:
        self.model = model
        self._hook = hook
        self._rows = int(rows.shape[0]) if hasattr(rows, "shape") else 0
        self._trees = 0  # of the current round
        self._begun = False
        self._done = 0

    def tree(self) -> None:
        """Called when a tree has grown; it is not in the model yet."""
        hook = self._hook
        if not self._begun:
            hook.while_live("begin", self._begin)
        self._trees += 1
        if self._trees > int(getattr(self.model, "n_trees_per_iteration_", 1)):
            self._trees = 1
            if not self.model.do_early_stopping_:
                self._ended()

    def scored(self) -> None:
        """Called when the losses of a round, or of the model before the first round, were computed."""
        if self._trees:
            self._trees = 0
            self._ended()

    def _begin(self) -> None:
        self._begun = True
        before = len(self.model._predictors) - 1
        self._done = before
        self._hook.begin_rounds(self.model, before, int(self.model.max_iter) - before)

    def _ended(self) -> None:
        self._done += 1
        self._hook.trainings.round_ended(
            self.model, self.model, lambda: self._done, self._metrics, self._facts
        )

    def _metrics(self) -> list[Metric]:
        model = self.model
        if not model.do_early_stopping_:
            return []
        loss = model.scoring == "loss"
        metric, sign = (model.loss, -1.0) if loss else ("score", 1.0)
        found: list[Metric] = []
        for data, scores in (("train", model.train_score_), ("validation", model.validation_score_)):
            if len(scores):
                found.append((data, metric, sign * float(scores[-1]), None))
        return found

    def _facts(self) -> Facts:
        learnt = int(
            self.model._predictors[0][0].nodes["count"][0]
        )  # the root holds all rows of the training
        return facts_of(self.model, learnt, self._rows - learnt if self._rows > learnt else None)
