"""Reductions of a tensor and the names under which they are saved.

The definitions are the same as everywhere in Luff: standard deviation and variance divide by n, norms are those of
the flattened tensor.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from luff.compat.smdebug.core.reduction_config import ALLOWED_NORMS, ALLOWED_REDUCTIONS
from luff.compat.smdebug.exceptions import SMDebugValueError

__all__ = ["PREFIX", "parse_reduction_name", "reduce_value", "reduction_name"]

PREFIX = "smdebug/reductions/"
_PORT = re.compile(r":\d+")


def reduction_name(tensor: str, reduction: str, magnitudes: bool) -> str:
    """Returns the name under which a reduction is saved."""
    return f"{PREFIX}{'abs_' if magnitudes else ''}{reduction}/{_PORT.sub('', tensor)}"


def parse_reduction_name(name: str) -> tuple[str, str, bool] | None:
    """Returns tensor, reduction, and whether it is of the magnitudes; None if the name is not that of a reduction."""
    if not name.startswith(PREFIX):
        return None
    reduction, slash, tensor = name[len(PREFIX) :].partition("/")
    if not slash:
        return None
    magnitudes = reduction.startswith("abs_")
    return tensor, reduction[4:] if magnitudes else reduction, magnitudes


def reduce_value(value: Any, reduction: str, magnitudes: bool) -> Any:
    """Computes one reduction of a value, in its type if that can hold the result."""
    if reduction not in ALLOWED_REDUCTIONS and reduction not in ALLOWED_NORMS:
        raise SMDebugValueError(
            f"found reduction {reduction!r}, expected one of {', '.join(ALLOWED_REDUCTIONS + ALLOWED_NORMS)}"
        )
    x = np.asarray(value)
    if magnitudes:
        x = np.abs(x)
    if reduction in ALLOWED_NORMS:
        if x.dtype.kind in "biu":
            x = x.astype(np.float64)
        return np.linalg.norm(x.ravel(), ord=1 if reduction == "l1" else 2)
    if reduction == "variance":
        return np.var(x)
    return getattr(np, reduction)(x)
