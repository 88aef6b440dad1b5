"""Hooks of MXNet: the package for ``import smdebug.mxnet as smd``."""

from __future__ import annotations

from luff.compat.smdebug import ReductionConfig, SaveConfig, SaveConfigMode, modes
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.mxnet.collection import Collection
from luff.compat.smdebug.mxnet.hook import Hook
from luff.compat.smdebug.mxnet.singleton_utils import del_hook, get_hook, set_hook
from luff.compat.smdebug.trials import create_trial

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
