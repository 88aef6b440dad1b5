"""smdebug's API on Luff.

Import it directly, ``import luff.compat.smdebug.pytorch as smd``, or under smdebug's name: after `install`, under
``python -m luff.compat.smdebug SCRIPT ...`` and under ``luff run --compat smdebug -- ...`` an unchanged
``import smdebug.pytorch as smd`` finds this package. docs/migrate/smdebug.md lists the differences.
"""

from __future__ import annotations

import importlib
from typing import Any

from luff.compat._alias import Alias
from luff.compat.smdebug.core.collection import Collection, CollectionKeys
from luff.compat.smdebug.core.collection_manager import CollectionManager
from luff.compat.smdebug.core.modes import ModeKeys as modes
from luff.compat.smdebug.core.reduction_config import ReductionConfig
from luff.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode

__all__ = [
    "Collection",
    "CollectionKeys",
    "CollectionManager",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "install",
    "modes",
    "uninstall",
]

_alias = Alias("smdebug", __name__)
install, uninstall = _alias.install, _alias.uninstall

#: The smdebug version whose API this is.
__version__ = "1.0.34"

# Imported on first use: these need the framework, or much code.
_LATER = {
    "Hook": "pytorch",
    "get_hook": "pytorch",
    "set_hook": "pytorch",
    "del_hook": "pytorch",
    "Trial": "trials",
    "create_trial": "trials",
    "Tensor": "core.tensor",
    "Rule": "rules",
    "invoke_rule": "rules",
}


def __getattr__(name: str) -> Any:
    place = _LATER.get(name)
    if place is not None:
        return getattr(importlib.import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
