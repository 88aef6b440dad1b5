"""The hook of this process, for PyTorch."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core import singleton
from luff.compat.smdebug.core.config_validator import get_config_validator
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.singleton import del_hook, set_hook
from luff.compat.smdebug.core.utils import FRAMEWORK

__all__ = ["del_hook", "get_hook", "set_hook"]


@error_handling_agent.catch_smdebug_errors()
def get_hook(json_config_path: str | None = None, create_if_not_exists: bool = False) -> Any:
    """Returns the hook. With `create_if_not_exists`, makes one from the JSON configuration, or returns None without
    one.
    """
    from luff.compat.smdebug.pytorch.hook import Hook

    if not get_config_validator(FRAMEWORK.PYTORCH).validate_training_job():
        return None
    return singleton.get_hook(json_config_path, Hook, create_if_not_exists)
