"""What a replay tells of an operation: its place in the user's source, and what its result holds."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

import torch

from luff.torch.capture._memory import array_of
from luff.torch.replay._domains import is_bad
from luff.torch.replay._replay import of_user

__all__ = ["line_of", "made_by", "place", "state_of", "tensors_of"]


def tensors_of(value: Any, depth: int = 0) -> list[Any]:
    """Returns the tensors of an argument or a result, in nested tuples and lists, too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth < 4 and isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item, depth + 1)]
    return []


def state_of(tensor: Any) -> int:
    """Returns 0: finite; 1: infinities; 2: NaN."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or not tensor.numel():
        return 0
    array = array_of(tensor)
    if array is not None:
        return 0 if not is_bad(array) else 2 if bool((array != array).any()) else 1
    if bool(torch.isfinite(tensor).all()):
        return 0
    return 2 if bool(torch.isnan(tensor).any()) else 1


def place() -> dict[str, Any]:
    """Returns the user's line that is running now."""
    frame: Any = sys._getframe(1)
    while frame is not None and not of_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return {}
    return line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def line_of(filename: str, line: int, function: str = "") -> dict[str, Any]:
    """Returns file (relative to the working directory), line and text."""
    shown = os.path.relpath(filename) if filename.startswith(os.getcwd() + os.sep) else filename
    found: dict[str, Any] = {"file": shown[-200:], "line": line}
    text = linecache.getline(filename, line).strip()
    if text:
        found["code"] = text[:160]
    if function and not function.startswith("<"):
        found["function"] = function[:80]
    return found


def made_by(op: str, phase: str, reason: str, count: int, tensor: Any) -> dict[str, Any]:
    """Describes the operation that made a tensor; `count` of its non-finite values, 0: counted here."""
    array = array_of(tensor)
    bad = 0 if array is None else int((~(abs(array) < float("inf"))).sum())
    return {
        "phase": phase,
        "operator": op,
        "reason": reason,
        "count": count or bad,
        "elements": int(tensor.numel()),
    }
