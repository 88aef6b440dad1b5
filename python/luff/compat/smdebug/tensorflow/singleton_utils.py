"""The hook of this process, for TensorFlow."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core import singleton
from luff.compat.smdebug.core.config_validator import get_config_validator
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.singleton import del_hook, set_hook
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.exceptions import SMDebugValueError

__all__ = ["del_hook", "get_hook", "set_hook"]


@error_handling_agent.catch_smdebug_errors()
def get_hook(
    hook_type: str | None = None, json_config_path: str | None = None, create_if_not_exists: bool = False
) -> Any:
    """Returns the hook of the process.

    Parameters
    ----------
    hook_type
        ``"keras"``; None means whichever exists. ``"session"`` and ``"estimator"`` hooks can no longer be made.
    json_config_path
        The JSON configuration; by default the file that SMDEBUG_CONFIG_FILE_PATH names.
    create_if_not_exists
        Make a hook from the configuration if there is none; returns None without a configuration.

    Raises
    ------
    SMDebugValueError
        For another `hook_type`, or if a hook is to be made and no type is named.
    SMDebugError
        If a hook of sessions is to be made.
    """
    from luff.compat.smdebug.tensorflow.keras import KerasHook
    from luff.compat.smdebug.tensorflow.session import SessionHook

    if not get_config_validator(FRAMEWORK.TENSORFLOW).validate_training_job():
        return None
    if hook_type is None:
        if create_if_not_exists:
            raise SMDebugValueError("found no hook_type, expected 'keras' where a hook is to be made")
        return singleton.get_hook()
    kinds = {"keras": KerasHook, "session": SessionHook, "estimator": SessionHook}
    if hook_type not in kinds:
        raise SMDebugValueError(f"found hook_type {hook_type!r}, expected 'keras'")
    return singleton.get_hook(json_config_path, kinds[hook_type], create_if_not_exists)
