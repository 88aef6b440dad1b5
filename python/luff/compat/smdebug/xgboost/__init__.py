"""Hooks of XGBoost: the package for ``import smdebug.xgboost``."""

from __future__ import annotations

from luff.compat.smdebug import Collection, ReductionConfig, SaveConfig, SaveConfigMode, modes
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.trials import create_trial
from luff.compat.smdebug.xgboost.hook import Hook
from luff.compat.smdebug.xgboost.singleton_utils import del_hook, get_hook, set_hook

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
