"""The hook of this process."""

from __future__ import annotations

import atexit
from typing import Any

from luff.compat.smdebug.core.logger import get_logger

__all__ = ["del_hook", "get_hook", "set_hook"]

_hook: Any = None
_registered = False


def set_hook(hook: Any) -> None:
    """Sets the hook of the process."""
    from luff.compat.smdebug.core.hook import BaseHook
    from luff.compat.smdebug.exceptions import SMDebugTypeError

    global _hook, _registered
    if not isinstance(hook, BaseHook):
        raise SMDebugTypeError(f"found {type(hook).__name__}, expected a hook")
    _hook = hook
    if not _registered:
        _registered = True
        atexit.register(del_hook)


def get_hook(
    json_config_path: str | None = None, hook_class: Any = None, create_if_not_exists: bool = False
) -> Any:
    """Returns the hook of the process. If there is none of this class, returns a new one, or None."""
    global _hook
    if _hook is not None and hook_class is not None and not isinstance(_hook, hook_class):
        _hook = None
    if _hook is None and create_if_not_exists and hook_class is not None:
        try:
            _hook = hook_class.create_from_json_file(json_config_path)
        except FileNotFoundError as error:
            get_logger().debug("no hook: %s", error)
    return _hook


def del_hook() -> None:
    """Forgets the hook of the process."""
    global _hook
    _hook = None
