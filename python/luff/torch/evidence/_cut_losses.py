"""Finds a loss that a limit from above holds still: where it is larger, nothing has a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import array_of
from luff.torch.evidence._loss_edges import Edge, inner_of, past_edge
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import DEPTH

__all__ = ["is_cut_off"]

_SHARE = 0.9  # of the values that are limited, where there are several
_LIMITS = {
    "Clamp": ("min", "max"),
    "ClampMax": ("", "max"),
    "ClampMin": ("min", ""),
    "Hardtanh": ("min_val", "max_val"),
}


def is_cut_off(edge: Edge) -> bool:
    """Returns whether all of a loss lies above a limit that its value is cut to, so that this root has no gradient.

    What is wanted large, and held below a limit by the same functions, has a minus before or behind it: a margin that
    is reached. Of a loss of several terms nothing is known.
    """
    sign = 1.0
    for _ in range(DEPTH):
        edge = past_edge(edge)
        node, inner = edge[0], inner_of(edge[0])
        if len(inner) != 1:
            return False
        name = operation_of(node)
        if name in _LIMITS:
            return _is_held(node._saved_self, _bounds(node, name), sign)
        if name in ("Minimum", "Maximum"):
            own, other = (node._saved_self, node._saved_other)[
                :: 1 if node.next_functions[0][0] is not None else -1
            ]
            bounds = (None, other) if name == "Minimum" else (other, None)
            return _is_held(own, bounds, sign)
        factor = constant_factor(node, name == "Div") if name in ("Mul", "Div") else None
        if name in ("Neg", "Rsub") or (name == "Sub" and node.next_functions[0][0] is None):
            sign = -sign
        elif factor is not None and node.next_functions[0][0] is not None:
            sign *= 1.0 if factor > 0.0 else -1.0
        elif name not in ("Mean", "Sum", "Add", "Sub"):
            return False
        edge = inner[0]
    return False


def _bounds(node: Any, name: str) -> tuple[Any, Any]:
    low, high = _LIMITS[name]
    return getattr(node, f"_saved_{low}", None), getattr(node, f"_saved_{high}", None)


def _is_held(tensor: Any, bounds: tuple[Any, Any], sign: float) -> bool:
    """Whether values lie beyond the limit that a loss with such a sign comes to from above."""
    limit = bounds[sign > 0.0]
    values = None if limit is None or tensor is None else array_of(tensor)
    if values is None or not values.size:
        return False
    bound = np.float64(limit) if isinstance(limit, int | float) else array_of(limit)
    if bound is None or bound.size != 1 or not np.isfinite(bound).all() or not np.isfinite(values).all():
        return False
    beyond = (values > bound) if sign > 0.0 else (values < bound)
    return bool(beyond.mean() >= _SHARE)
