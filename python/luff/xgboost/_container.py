"""Wraps the container that calls XGBoost's callbacks: `xgb.train`, `cv` and the scikit-learn estimators all use it.

The container knows the training data and the evaluation sets, which a callback never receives. Luff runs after every
other callback, also in the round in which one of them ends the training.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from luff._codes import Phase
from luff._patch import Method, once, wrap
from luff._phases import during

__all__ = ["has_own_objective", "install", "names_metrics", "planned_rounds"]

_local = threading.local()
_hooks: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()  # container -> hooks


def planned_rounds() -> int | None:
    """Returns the number of rounds requested for the running training, if it is known."""
    value = getattr(_local, "rounds", None)
    return value if isinstance(value, int) else None


def names_metrics() -> bool:
    """Returns whether the running training was told which metrics to evaluate."""
    return bool(getattr(_local, "metrics", False))


def has_own_objective() -> bool:
    """Returns whether gradients come from a function of the user's: metrics then get raw scores."""
    return bool(getattr(_local, "own", False))


def hooks_of(container: Any) -> list[Any]:
    """Returns the hooks that watch a container's training."""
    found = _hooks.get(container)
    if found is None:
        from luff.xgboost._hook import Callback, hooks

        found = [callback for callback in container.callbacks if isinstance(callback, Callback)]
        if not found and hooks.default is not None:
            found = [hooks.default]
        _hooks[container] = found
    return found


@once
def install() -> None:
    """Installs the wrappers. They are never removed, and do nothing without a hook."""
    from xgboost import callback

    kind = callback.CallbackContainer
    wrap(kind, "before_training", _before_training)
    wrap(kind, "after_iteration", _after_iteration)
    wrap(kind, "after_training", _after_training)
    _wrap_functions()
    _wrap_phases()


def _before_training(original: Method) -> Method:
    def before_training(self: Any, model: Any) -> Any:
        model = original(self, model)
        for hook in hooks_of(self):
            hook.begin_training(self, model, planned_rounds())
        return model

    return before_training


def _after_iteration(original: Method) -> Method:
    def after_iteration(self: Any, model: Any, epoch: int, dtrain: Any, evals: Any) -> Any:
        done = original(self, model, epoch, dtrain, evals)
        for hook in hooks_of(self):
            hook.round(self, model, dtrain, evals)
        return done

    return after_iteration


def _after_training(original: Method) -> Method:
    def after_training(self: Any, model: Any) -> Any:
        for hook in hooks_of(self):
            hook.trainings.ended(self)
        return original(self, model)

    return after_training


def _wrap_phases() -> None:
    """Rounds, their evaluations, data that is made for them, and models that are saved."""
    from xgboost import core

    from luff.xgboost._hook import hooks

    for kind, phases in (
        ("Booster", {"update": Phase.COMPUTE, "boost": Phase.COMPUTE, "eval_set": Phase.EVAL}),
        ("Booster", {"save_model": Phase.CHECKPOINT}),
        ("DMatrix", {"__init__": Phase.DATA_START}),
        ("QuantileDMatrix", {"__init__": Phase.DATA_START}),
    ):
        owner = getattr(core, kind, None)
        for name, phase in phases.items():
            if owner is not None and name in vars(owner):
                wrap(owner, name, during(phase, hooks))


def _wrap_functions() -> None:
    import sys

    import xgboost
    from xgboost import training

    for name in ("train", "cv"):
        wrap(training, name, _noting_rounds, also=(xgboost, sys.modules.get("xgboost.sklearn")))


def _noting_rounds(original: Method) -> Method:
    def noting_rounds(*args: Any, **kwargs: Any) -> Any:
        before = tuple(getattr(_local, name, None) for name in ("rounds", "metrics", "own"))
        _local.rounds = args[2] if len(args) > 2 else kwargs.get("num_boost_round", 10)
        _local.own = callable(kwargs.get("obj"))
        _local.metrics = bool(kwargs.get("metrics")) or _has_metric(args[0] if args else kwargs.get("params"))
        try:
            return original(*args, **kwargs)
        finally:
            _local.rounds, _local.metrics, _local.own = before

    return noting_rounds


def _has_metric(parameters: Any) -> bool:
    """Returns whether parameters, given as a mapping or as pairs, name a metric."""
    try:
        return bool(dict(parameters).get("eval_metric"))
    except (TypeError, ValueError):
        return False
