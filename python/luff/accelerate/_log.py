"""Records what `Accelerator.log` is given, in the open step or the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator

from luff._patch import Method, once, wrap
from luff.torch.capture._memory import read_scalar
from luff.torch.loop._hook import Hook
from luff.torch.patches._registry import hooks

__all__ = ["install", "record"]

_MAX_METRICS = 4096  # in one call


def record(values: Any) -> None:
    """Records numbers as ``scalar/NAME``; never raises."""
    hook = hooks.current()
    if hook is not None and hook.live and not hook.asleep:
        hook.guarded("log", _record, hook, values)


@once
def install() -> None:
    """Wraps `Accelerator.log`; once per process."""
    wrap(Accelerator, "log", _telling)


def _telling(original: Method) -> Method:
    def log(self: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, values, *args, **kwargs)
        record(values)
        return result

    return log


def _record(hook: Hook, values: Any) -> None:
    if hook.machine.session is None:  # nothing was trained yet: no run is opened for its metrics
        return
    if not isinstance(values, Mapping) or len(values) > _MAX_METRICS:
        return
    for name, value in values.items():
        number = read_scalar(value) if isinstance(value, torch.Tensor) else value
        if isinstance(number, float | int):
            hook.steps.save_scalar(str(name), float(number))
