"""Finds what is wrong with the clipped objective of PPO: the smaller of two means in the place of the mean of the
smaller, the larger in the place of the smaller, differences of logarithms in the place of their exponential, a clip of
something else.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._loss_edges import Edge, Part, inner_of, past_edge, power_of, scaled, shape_of
from luff.torch.evidence._loss_terms import DEPTH, read

__all__ = ["fault_of_surrogate"]

_ERRORS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss"))
_REDUCES = ("Mean", "Sum")
_WIDEST = 3.0  # upper bound of a ratio that is clipped
_CHOICES = ("Gather", "Index", "Select", "Sum", "Mean", "Squeeze", "Add")


class _Both(NamedTuple):
    """The smaller or the larger of two."""

    one: Edge
    other: Edge
    smaller: bool


class _Product(NamedTuple):
    factor: Edge
    gain: Edge | None  # None: without a gradient
    sign: float
    node: object


def fault_of_surrogate(parts: list[Part]) -> str:
    """Returns what is wrong with the objectives of PPO in a loss; "" if one of them is right, or there is none."""
    found = {fault for part in parts if (fault := _of(part)) is not None}
    return found.pop() if len(found) == 1 else ""


def _of(part: Part) -> str | None:
    """Returns what is wrong with a part: "" if nothing is, None if it is no clipped objective."""
    both = _both(part.edge)
    if both is None:
        return None
    if (values := _of_values(both, part.sign)) is not None:
        return values
    one, other = past_edge(both.one), past_edge(both.other)
    reduced = all(operation_of(scaled(edge)[0][0]) in _REDUCES for edge in (one, other))
    if reduced:
        one, other = (_unreduced(edge) for edge in (one, other))
    for plain, clipped in ((one, other), (other, one)):
        fault = _of_pair(plain, clipped, part.sign, both.smaller)
        if fault is None:
            continue
        many = math.prod(shape_of(scaled(plain)[0])) > 1
        return "means_compared" if reduced and many and fault == "" else fault
    return None


def _both(edge: Edge) -> _Both | None:
    name, node = operation_of(edge[0]), edge[0]
    if name in ("Minimum", "Maximum") and len(inner_of(node)) == 2:
        one, other = inner_of(node)
        return _Both(one, other, name == "Minimum")
    if name in ("Min", "Max", "Amin", "Amax") and inner_of(node):
        stack = past_edge(inner_of(node)[0])
        if operation_of(stack[0]) == "Stack" and len(inner_of(stack[0])) == 2:
            one, other = inner_of(stack[0])
            return _Both(one, other, name in ("Min", "Amin"))
    return None


def _unreduced(edge: Edge) -> Edge:
    """Returns what is averaged. A factor before the mean is one of the objective's scale."""
    inner, _ = scaled(edge)
    return inner_of(inner[0])[0]


def _of_pair(plain: Edge, clipped: Edge, sign: float, smaller: bool) -> str | None:
    clamp = _clamp(past_edge(clipped))
    for one in _products(plain):
        if clamp is not None:  # with nothing that multiplies the clip
            product = next(
                (p for p in _products(clamp[0]) if _alike(p.factor, one.factor) and _ratio(one)), None
            )
            if _around(*clamp[1:], 1.0) and (
                product is not None or (_alike(clamp[0], one.factor) and _ratio(one))
            ):
                return "gain_clipped" if product is not None else "clip_without_gain"
        for other in _products(clipped):
            if one.sign != other.sign:
                continue
            fault = _of_products(one, other, sign * one.sign, smaller)
            if fault is not None:
                return fault
    return None


def _of_products(one: _Product, other: _Product, sign: float, smaller: bool) -> str | None:
    clamp = _clamp(other.factor)
    if clamp is None:
        if _alike(one.factor, other.factor) and _ratio(one) and one.gain is None and other.gain is None:
            return "gain_clipped" if _clipped_gain(one, other) else None
        return None
    inside, least, most = clamp
    if not _alike(inside, one.factor) or one.gain != other.gain:
        return None
    if operation_of(inside[0]) == "Exp":
        if least < 0 and math.isclose(least, -most) and most < 1:
            return "clip_around_zero"
        if not _around(least, most, 1.0):
            return None
        # With costs in the place of gains the larger one is right: it is added then, and the smaller subtracted.
        return "" if smaller == (sign < 0) else "surrogate_upside_down"
    if not _around(least, most, 1.0):
        return None
    if operation_of(inside[0]) == "Sub" or (operation_of(inside[0]) == "Div" and _is_logarithm(inside)):
        right = len(inner_of(inside[0])) == 1 and inside[0].next_functions[0][0] is not None
        return "ratio_without_exp" if right else None
    return None


def _alike(one: Edge, other: Edge, depth: int = 2) -> bool:
    """Returns whether two edges are one, or made of the same by the same operations: a ratio that is written twice."""
    if one == other:
        return True
    inner, others = inner_of(one[0]), inner_of(other[0])
    return (
        depth > 0
        and one[1] == other[1]
        and operation_of(one[0]) == operation_of(other[0])
        and len(inner) == len(others) > 0
        and all(_alike(*pair, depth - 1) for pair in zip(inner, others, strict=True))
    )


def _ratio(product: _Product) -> bool:
    return operation_of(product.factor[0]) == "Exp"


def _around(least: float, most: float, centre: float) -> bool:
    return 0 < least < centre < most <= _WIDEST


def _clamp(edge: Edge) -> tuple[Edge, float, float] | None:
    """Returns what is limited on both sides, and the limits."""
    node = edge[0]
    if operation_of(node) != "Clamp":
        return None
    least, most = node._saved_min, node._saved_max
    if not isinstance(least, int | float) or not isinstance(most, int | float):
        return None
    return past_edge(node.next_functions[0]), float(least), float(most)


def _products(edge: Edge) -> list[_Product]:
    """Returns both ways to read a product: what has a gradient as the factor, the rest as the gain."""
    edge, factor = scaled(edge)
    node = edge[0]
    if operation_of(node) != "Mul":
        return []
    sign = math.copysign(1.0, factor)
    one, other = node.next_functions
    pairs = ((past_edge(one), other), (past_edge(other), one))
    return [
        _Product(f, None if gain[0] is None else past_edge(gain), sign, node)
        for f, gain in pairs
        if f[0] is not None
    ]


def _clipped_gain(one: _Product, other: _Product) -> bool:
    """Returns whether the gains of one product are those of the other, limited to around 1."""
    gains, limited = _constant(one), _constant(other)
    if gains is None or limited is None or gains.shape != limited.shape or gains.size < 2:
        return False
    least, most = float(limited.min()), float(limited.max())
    inside = _around(least, most, 1.0) and not np.array_equal(gains, limited)
    return inside and bool(np.array_equal(np.clip(gains, least, most), limited))


def _constant(product: _Product) -> np.ndarray | None:
    node = product.node
    first = node.next_functions[0][0] is None  # type: ignore[attr-defined]
    return read(node._saved_self if first else node._saved_other)  # type: ignore[attr-defined]


def _is_logarithm(edge: Edge) -> bool:
    """Returns whether a quotient's numerator is a log-probability of what was chosen."""
    edge = edge[0].next_functions[0]
    for _ in range(DEPTH):
        edge = past_edge(edge)
        if operation_of(edge[0]) in ("LogSoftmax", "Log"):
            return True
        inner = inner_of(edge[0])
        if operation_of(edge[0]) == "Sub" and any(
            operation_of(past_edge(i)[0]) == "Logsumexp" for i in inner
        ):
            return True
        if operation_of(edge[0]) not in _CHOICES or not inner:
            return False
        edge = inner[0]
    return False


# Values ------------------------------------------------------------------------------------------------------------


def _of_values(both: _Both, sign: float) -> str | None:
    """Returns whether of the errors of values, plain and clipped near to the old ones, the smaller one is taken."""
    one, other = _predicted(both.one), _predicted(both.other)
    if one is None or other is None:
        return None
    for plain, near in ((one, other), (other, one)):
        inner = inner_of(near[0])
        if operation_of(near[0]) != "Add" or len(inner) != 1:
            continue
        clamp = _clamp(past_edge(inner[0]))
        if clamp is None or not math.isclose(clamp[1], -clamp[2]) or operation_of(clamp[0][0]) != "Sub":
            continue
        moved = inner_of(clamp[0][0])
        if len(moved) == 1 and past_edge(moved[0]) == plain:
            return "values_smaller" if both.smaller == (sign > 0) else ""
    return None


def _predicted(edge: Edge) -> Edge | None:
    """Returns what an error for each sample is the error of."""
    edge, _ = scaled(edge)
    if operation_of(edge[0]) in _ERRORS:
        inner = inner_of(edge[0]) if edge[0]._saved_reduction == 0 else []
    else:
        power = power_of(edge)
        squared = power.exponent == 2 and not power.exponential
        difference = power.base[0]
        inner = inner_of(difference) if squared and operation_of(difference) in ("Sub", "Rsub") else []
    return past_edge(inner[0]) if len(inner) == 1 else None
