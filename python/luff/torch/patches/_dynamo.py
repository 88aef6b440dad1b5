"""Keeps torch.compile from compiling Luff: like frames of torch itself, Luff's frames are skipped.

When dynamo breaks a graph inside a model, the surrounding code really runs, and each Python frame that is then
entered may begin a new graph. A frame of Luff would begin a graph where a frame of torch does not. That would change
the graphs, and thus the rounding.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, cast

__all__ = ["leave_out"]

_PACKAGES = (
    "luff.torch",
    "luff._hook",
    "luff._base_hook",
    "luff._step_writer",
    "luff._arrays",
    "luff._memory",
    "luff._patch",
    "luff._phases",
    "luff._registry",
    "luff._tracer",
    "luff._turn",
    "luff._weak",
    "luff._rows",
    "luff.stop",
    "luff.corrections",
)


def _codes_in(code: CodeType, found: set[CodeType]) -> None:
    if code not in found:
        found.add(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                _codes_in(constant, found)


def _functions(holder: Any, module: str, found: set[CodeType]) -> None:
    for value in list(vars(holder).values()):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType) and value.__module__ == module:
            _codes_in(value.__code__, found)
        elif isinstance(value, type) and value.__module__ == module:
            _functions(value, module, found)


def _marker() -> Callable[[CodeType], object] | None:
    """Returns a function that marks code as no place to begin a graph (it can still be part of one), or None."""
    try:
        frames: Any = importlib.import_module("torch._C._dynamo.eval_frame")
        if hasattr(frames, "skip_code"):  # torch before 2.7
            return cast("Callable[[CodeType], object]", frames.skip_code)
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        mark = frames.set_code_exec_strategy
    except (ImportError, AttributeError, TypeError):
        return None
    return lambda code: mark(code, strategy)


def leave_out() -> int:
    """Marks every function of Luff that runs inside a training. Returns their number."""
    mark = _marker()
    if mark is None:
        return 0
    found: set[CodeType] = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES):
            _functions(module, name, found)
    for code in found:
        mark(code)
    return len(found)
