"""Where LightGBM trains: `lgb.train`, `lgb.cv`, and the scikit-learn estimators, which call the first.

Wrapped, so that a training without a hook of its own gets that of ``luff run``, and so that its end is seen. All else
a callback is told.
"""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass
from typing import Any

from luff._patch import Method, once, wrap

__all__ = ["Call", "current", "install"]

_local = threading.local()


@dataclass
class Call:
    """One call of `train` or `cv` under way."""

    raw: Any = None  # what is trained on, as the user gave it, where contributions are asked for
    model: Any = None  # the booster, once a callback was told of it


def current() -> Call | None:
    """The call under way in this thread; None if LightGBM was imported in another way."""
    return getattr(_local, "call", None)


@once
def install() -> None:
    """Begins to listen. Nothing is ever undone, and nothing happens without a hook."""
    import lightgbm
    from lightgbm import engine

    for name in ("train", "cv"):
        wrap(engine, name, _watched, also=(lightgbm, sys.modules.get("lightgbm.sklearn")))


def _watched(original: Method) -> Method:
    places = list(inspect.signature(original).parameters)
    data_at, callbacks_at = places.index("train_set"), places.index("callbacks")

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
    """The hooks of a training, and its callbacks, that of ``luff run`` among them where it has no other."""
    from luff.lightgbm._hook import Callback, hooks

    if given is not None and not isinstance(given, (list, tuple, set)):
        return [], given
    found = [callback for callback in given or () if isinstance(callback, Callback)]
    hook = hooks.default if not found else None
    if hook is None:
        return found, given
    callbacks = list(given or ())
    for place, callback in enumerate(callbacks):  # as LightGBM numbers them, before there is one more
        if hasattr(callback, "__dict__"):
            callback.__dict__.setdefault("order", place - len(callbacks))
    return [hook], [*callbacks, hook]
