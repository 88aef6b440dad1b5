"""Handles errors inside a hook.

With the default configuration, an error is logged once and the hook is off for the rest of the process. With the
user's own configuration it is raised, as in smdebug, so that a wrong configuration is noticed.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

from luff.compat.smdebug.core.logger import get_logger

__all__ = ["BASE_ERROR_MESSAGE", "ErrorHandlingAgent"]

BASE_ERROR_MESSAGE = (
    "an error in the hook was caught; nothing more is saved in this process, and the training goes on:"
)


_disabled: dict[Callable[..., Any], Callable[..., Any]] = {}


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function in a form that torch.compile skips, once torch._dynamo is imported in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return function
    found = _disabled.get(function)
    if found is None:
        disable = getattr(dynamo, "disable", None)
        found = _disabled[function] = disable(function) if disable is not None else function
    return found


class ErrorHandlingAgent:
    """Catches or raises the errors of hooks; one agent per process."""

    def __init__(self) -> None:
        self.disable_smdebug = False
        self.hook: Any = None

    def set_hook(self, hook: Any) -> None:
        """Sets the hook whose configuration decides."""
        self.hook = hook

    def _is_default(self) -> bool:
        if self.hook is None:
            return True
        try:
            return bool(self.hook.has_default_configuration())
        except AttributeError:  # the hook's constructor has failed
            return False

    def catch_smdebug_errors(
        self,
        default_return_val: Any = None,
        return_type: Any = None,  # noqa: ARG002
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a function so that its errors are caught here; it then returns `default_return_val`."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                if self.disable_smdebug:
                    return default_return_val() if callable(default_return_val) else default_return_val
                try:
                    return _uncompiled(function)(*args, **kwargs)
                except Exception as error:
                    if self.disable_smdebug or not self._is_default():
                        raise
                    self.disable_smdebug = True
                    get_logger().error(
                        "%s %s\n%s", BASE_ERROR_MESSAGE, error, traceback.format_exc().rstrip()
                    )
                    return default_return_val() if callable(default_return_val) else default_return_val

            guarded._torchdynamo_disable = True  # type: ignore[attr-defined]
            return guarded

        return decorate


error_handling_agent = ErrorHandlingAgent()
