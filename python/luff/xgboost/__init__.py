"""Luff for XGBoost.

Two lines attach it to a training::

    import luff.xgboost

    xgb.train(parameters, dtrain, 100, evals=[(dtrain, "train")], callbacks=[luff.xgboost.Hook("runs/first")])

The same hook goes into ``callbacks`` of the scikit-learn estimators and of ``xgb.cv``. ``luff run -- python train.py``
does without a change to the script. Either way models and metrics are bit by bit what they are without.
"""

from __future__ import annotations

from luff._boosting._frame import trees
from luff.errors import StopTraining
from luff.xgboost import _container
from luff.xgboost._hook import Hook, hooks

__all__ = ["Hook", "StopTraining", "attach_to_all", "get_hook", "save_scalar", "trees"]

_container.install()
attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
