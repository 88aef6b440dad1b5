"""Luff for LightGBM.

Two lines attach it to a training::

    import luff.lightgbm

    lgb.train(parameters, data, 100, valid_sets=[data], callbacks=[luff.lightgbm.Callback("runs/first")])

The same hook goes into ``callbacks`` of ``fit`` of the scikit-learn estimators and of ``lgb.cv``.
``luff run -- python train.py`` does without a change to the script. Either way models and metrics are bit by bit what
they are without.
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

Hook = Callback  #: What `get_hook` gives, as in other frameworks.

_train.install()
attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
