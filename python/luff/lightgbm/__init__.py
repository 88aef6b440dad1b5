"""Luff for LightGBM.

Two lines attach it to a training::

    import luff.lightgbm

    lgb.train(parameters, data, 100, valid_sets=[data], callbacks=[luff.lightgbm.Hook("runs/first")])

The same hook goes into ``callbacks`` of ``fit`` of the scikit-learn estimators and of ``lgb.cv``.
``luff run -- python train.py`` does without a change to the script. Either way models and metrics are bit by bit what
they are without.
"""

from __future__ import annotations

from luff._boosting._frame import trees
from luff._hook import run_from_environment
from luff.errors import StopTraining
from luff.lightgbm import _train
from luff.lightgbm._hook import Hook, living

__all__ = ["Hook", "StopTraining", "attach_to_all", "get_hook", "save_scalar", "trees"]

_train.install()
_default: Hook | None = None


def attach_to_all() -> Hook | None:
    """Watches whatever this process trains; used by ``luff run``. None if no supervisor named a run."""
    global _default
    if _default is None:
        options = run_from_environment()
        if options is None:
            return None
        _default = Hook(_options=options)
        _train.set_default(lambda: _default if _default is not None and _default.live else None)
    return _default


def get_hook() -> Hook | None:
    """The hook of ``luff run``, or the only one that is open."""
    hooks = list(living)
    if _default is not None and _default.live:
        return _default
    return hooks[0] if len(hooks) == 1 else None


def save_scalar(name: str, value: float) -> None:
    """Records a number with the next round; nothing happens where Luff is not attached."""
    hook = get_hook()
    if hook is not None:
        hook.save_scalar(name, value)
