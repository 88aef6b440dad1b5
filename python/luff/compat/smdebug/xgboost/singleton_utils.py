"""The hook of this process, for XGBoost."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core import singleton
from luff.compat.smdebug.core.singleton import del_hook, set_hook

__all__ = ["del_hook", "get_hook", "set_hook"]


def get_hook(json_config_path: str | None = None, create_if_not_exists: bool = True) -> Any:
    """Returns the hook. If there is none, makes one from the JSON configuration, or returns None without one."""
    from luff.compat.smdebug.xgboost.hook import Hook

    return singleton.get_hook(json_config_path, Hook, create_if_not_exists)
