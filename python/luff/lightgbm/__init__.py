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
from luff.errors import StopTraining
from luff.lightgbm import _train
from luff.lightgbm._hook import Hook, hooks

__all__ = ["Hook", "StopTraining", "attach_to_all", "get_hook", "save_scalar", "trees"]

_train.install()
attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
