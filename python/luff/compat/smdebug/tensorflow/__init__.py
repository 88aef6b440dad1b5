"""Hooks of TensorFlow: the package for ``import smdebug.tensorflow as smd``."""

from __future__ import annotations

from luff.compat.smdebug import ReductionConfig, SaveConfig, SaveConfigMode, modes
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.tensorflow.collection import Collection
from luff.compat.smdebug.tensorflow.keras import KerasHook
from luff.compat.smdebug.tensorflow.session import EstimatorHook, SessionHook
from luff.compat.smdebug.tensorflow.singleton_utils import del_hook, get_hook, set_hook
from luff.compat.smdebug.trials import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "EstimatorHook",
    "KerasHook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "SessionHook",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
