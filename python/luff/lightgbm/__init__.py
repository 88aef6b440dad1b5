"""Luff for LightGBM.

Two lines attach it to a training::

    import luff.lightgbm

    lgb.train(parameters, data, 100, valid_sets=[data], callbacks=[luff.lightgbm.Callback("runs/first")])

The same hook works in ``callbacks`` of the scikit-learn estimators' ``fit`` and of ``lgb.cv``.
``luff run -- python train.py`` needs no change to the script. Either way, models and metrics are bit by bit the same
as without Luff.
"""

from __future__ import annotations

from luff._boosting._frame import trees
from luff.errors import StopTraining
from luff.lightgbm import _train
from luff.lightgbm._hook import Callback, hooks

__all__ = [
    "Callback",
    "Hook",
    "StopTraining",
    "attach_to_all",
    "get_hook",
    "save_scalar",
    "save_tensor",
    "trees",
]

Hook = Callback  #  The type that `get_hook` returns, as in other frameworks.

_train.install()
attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
