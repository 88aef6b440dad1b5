"""Wraps `lgb.train` and `lgb.cv`. The scikit-learn estimators call the former.

The wrappers give a training without a hook that of ``luff run``, and detect the end of a training. A callback sees
everything else.
"""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass
from typing import Any

from luff._codes import Phase
from luff._patch import Method, once, wrap
from luff._phases import during

__all__ = ["Call", "current", "install"]

_local = threading.local()


@dataclass
class Call:
    """A running call of `train` or `cv`."""

    raw: Any = None  # the training data as the user gave it, if contributions may be asked for
    model: Any = None  # the booster, once a callback has received it
    data: Any = None  # what is known of the data sets, the training's first (`describe_data`)


def current() -> Call | None:
    """Returns the running call in this thread; None if LightGBM was imported in another way."""
    return getattr(_local, "call", None)


@once
def install() -> None:
    """Installs the wrappers. They are never removed, and do nothing without a hook."""
    import lightgbm
    from lightgbm import engine

    from luff.lightgbm._hook import hooks

    for name in ("train", "cv"):
        wrap(engine, name, _watched, also=(lightgbm, sys.modules.get("lightgbm.sklearn")))
    for owner, name, phase in (
        (lightgbm.Booster, "update", Phase.COMPUTE),
        (lightgbm.Booster, "eval_train", Phase.EVAL),
        (lightgbm.Booster, "eval_valid", Phase.EVAL),
        (lightgbm.Booster, "save_model", Phase.CHECKPOINT),
        (lightgbm.Dataset, "construct", Phase.DATA_START),
    ):
        if hasattr(owner, name):
            wrap(owner, name, during(phase, hooks))


def _watched(original: Method) -> Method:
    places = list(inspect.signature(original).parameters)
    data_at, callbacks_at = places.index("train_set"), places.index("callbacks")
    others_at = places.index("valid_sets") if "valid_sets" in places else None

    def watched(*args: Any, **kwargs: Any) -> Any:
        given = args[callbacks_at] if len(args) > callbacks_at else kwargs.get("callbacks")
        told, callbacks = _hooks_of(given)
        if not told:
            return original(*args, **kwargs)
        if len(args) > callbacks_at:
            args = (*args[:callbacks_at], callbacks, *args[callbacks_at + 1 :])
        else:
            kwargs["callbacks"] = callbacks
        data = args[data_at] if len(args) > data_at else kwargs.get("train_set")
        before = current()
        call = _local.call = Call(told[0].raw_data(data))
        if others_at is not None:
            others = args[others_at] if len(args) > others_at else kwargs.get("valid_sets")
            call.data = told[0].describe(data, others)  # LightGBM drops the rows when it has binned them
        result = None
        try:
            result = original(*args, **kwargs)
        finally:
            _local.call = before
            for hook in told:
                hook.call_ended(call, result)
        return result

    return watched


def _hooks_of(given: Any) -> tuple[list[Any], Any]:
    """Returns the hooks of a training and its callbacks, with the hook of ``luff run`` added if it has no other."""
    from luff.lightgbm._hook import Callback, hooks

    if given is not None and not isinstance(given, (list, tuple, set)):
        return [], given
    found = [callback for callback in given or () if isinstance(callback, Callback)]
    hook = hooks.default if not found else None
    if hook is None:
        return found, given
    callbacks = list(given or ())
    # as LightGBM would number them without the one that is added
    for place, callback in enumerate(callbacks):
        if hasattr(callback, "__dict__"):
            callback.__dict__.setdefault("order", place - len(callbacks))
    return [hook], [*callbacks, hook]
