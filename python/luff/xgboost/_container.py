"""Where XGBoost calls its callbacks: `xgb.train`, `cv` and the scikit-learn estimators all come through here.

The container knows the training data and the evaluation sets, which a callback is never told of; and it calls Luff
after every other callback, also in the round in which one of them ends the training.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["install", "planned_rounds", "set_default"]

_local = threading.local()
_installed = False
_default: Callable[[], Any] | None = None
_hooks: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()  # container -> hooks


def set_default(maker: Callable[[], Any] | None) -> None:
    """The hook of trainings that name none, or None."""
    global _default
    _default = maker


def planned_rounds() -> int | None:
    """Rounds that the training under way was asked for, where that is known."""
    value = getattr(_local, "rounds", None)
    return value if isinstance(value, int) else None


def hooks_of(container: Any) -> list[Any]:
    """The hooks that watch a container's training."""
    found = _hooks.get(container)
    if found is None:
        from luff.xgboost._hook import Hook

        found = [callback for callback in container.callbacks if isinstance(callback, Hook)]
        if not found and _default is not None:
            hook = _default()
            found = [] if hook is None else [hook]
        _hooks[container] = found
    return found


def install() -> None:
    """Begins to listen. Idempotent; nothing is ever undone, and nothing happens without a hook."""
    global _installed
    if _installed:
        return
    _installed = True
    from xgboost import callback

    _wrap_container(callback.CallbackContainer)
    _wrap_functions()


def _wrap_container(kind: Any) -> None:
    before_training, after_training = kind.before_training, kind.after_training
    after_iteration = kind.after_iteration

    @functools.wraps(before_training)
    def luff_before_training(self: Any, model: Any) -> Any:
        model = before_training(self, model)
        for hook in hooks_of(self):
            hook.begin_training(self, model, planned_rounds())
        return model

    @functools.wraps(after_iteration)
    def luff_after_iteration(self: Any, model: Any, epoch: int, dtrain: Any, evals: Any) -> Any:
        done = after_iteration(self, model, epoch, dtrain, evals)
        for hook in hooks_of(self):
            hook.round(self, model, dtrain, evals)
        return done

    @functools.wraps(after_training)
    def luff_after_training(self: Any, model: Any) -> Any:
        for hook in hooks_of(self):
            hook.training_ended(self)
        return after_training(self, model)

    kind.before_training = luff_before_training
    kind.after_iteration = luff_after_iteration
    kind.after_training = luff_after_training


def _wrap_functions() -> None:
    import sys

    import xgboost
    from xgboost import training

    for name in ("train", "cv"):
        original = getattr(training, name)
        wrapped = _noting_rounds(original)
        for module in (training, xgboost, sys.modules.get("xgboost.sklearn")):
            if module is not None and getattr(module, name, None) is original:
                setattr(module, name, wrapped)


def _noting_rounds(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting_rounds(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_local, "rounds", None)
        _local.rounds = args[2] if len(args) > 2 else kwargs.get("num_boost_round", 10)
        try:
            return original(*args, **kwargs)
        finally:
            _local.rounds = before

    return noting_rounds
