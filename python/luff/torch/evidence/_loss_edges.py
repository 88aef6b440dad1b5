"""Follows what a loss is a sum of along edges of the graph: a node and which of its results, as one of the two parts
that ``chunk`` or ``split`` has made.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import DEPTH, MOVES, constant_of

__all__ = ["Edge", "Part", "Power", "inner_of", "parts_of", "past_edge", "power_of", "scaled", "shape_of"]

_NODES = 128  # that are followed from a root
_SHAPES = (MOVES - {"Select", "Slice"}) | {"Expand"}  # keep all values
_HALVES = ("Mul", "Div")

Edge = tuple[Any, int]


class Power(NamedTuple):
    """A positive quantity: a power of what a node gives, or the exponential of a multiple of it."""

    base: Edge
    exponent: float
    exponential: bool


@dataclass(slots=True)
class Part:
    """What a loss adds, behind sums, means, constant factors and masks."""

    edge: Edge
    sign: float = 1.0


def inner_of(node: Any) -> list[Edge]:
    """Returns what a node was computed of, as far as it has a gradient."""
    return [] if node is None else [edge for edge in node.next_functions if edge[0] is not None]


def shape_of(edge: Edge) -> tuple[int, ...]:
    return tuple(int(size) for size in edge[0]._input_metadata[edge[1]].shape)


def past_edge(edge: Edge) -> Edge:
    """Returns an edge, or the first one behind it whose node does more than give the values another shape."""
    for _ in range(DEPTH):
        if operation_of(edge[0]) not in _SHAPES:
            break
        edge = edge[0].next_functions[0]
    return edge


def scaled(edge: Edge) -> tuple[Edge, float]:
    """Returns what is behind an edge without moves and constant factors, and the product of these."""
    factor = 1.0
    for _ in range(DEPTH):
        edge = past_edge(edge)
        name = operation_of(edge[0])
        if name == "Neg":
            factor, edge = -factor, edge[0].next_functions[0]
            continue
        number = constant_factor(edge[0], name == "Div") if name in _HALVES else None
        if number is None or edge[0].next_functions[0][0] is None:
            break
        factor, edge = factor * number, edge[0].next_functions[0]
    return edge, factor


def power_of(edge: Edge) -> Power:
    """Returns a quantity as a power. Constant factors and small numbers that are added are left out."""
    exponent = 1.0
    for _ in range(DEPTH):
        edge, _ = scaled(edge)
        node = edge[0]
        name = operation_of(node)
        following: tuple[Edge, ...] = () if node is None else node.next_functions
        if name == "Exp":
            base, factor = scaled(following[0])
            return Power(base, exponent * factor, True)
        if name == "Pow" and isinstance(node._saved_exponent, int | float):
            exponent *= float(node._saved_exponent)
        elif name == "Mul" and following[0][0] is not None and following[0] == following[1]:
            exponent *= 2.0
        elif name in ("Sqrt", "Rsqrt", "Reciprocal"):
            exponent *= {"Sqrt": 0.5, "Rsqrt": -0.5, "Reciprocal": -1.0}[name]
        elif not (name == "Add" and following[1][0] is None):
            break
        edge = following[0]
    return Power(edge, exponent, False)


def parts_of(edge: Edge) -> list[Part]:
    """Returns what an edge sums up; nothing if that is too much."""
    found: list[Part] = []
    queue = [] if edge[0] is None else [Part(edge)]
    for count, part in enumerate(queue):  # grows during the loop
        if count >= _NODES:
            return []
        opened = _opened(part)
        if opened is None:
            found.append(part)
        else:
            queue.extend(opened)
    return found


def _opened(part: Part) -> Iterator[Part] | None:
    node = part.edge[0]
    name, following = operation_of(node), node.next_functions
    if name in _SHAPES or name in ("Mean", "Sum"):
        return iter([replace(part, edge=following[0])])
    if name in ("Neg", "Rsub"):
        return iter([replace(part, edge=following[0], sign=-part.sign)])
    if name in ("Add", "Sub"):
        signs = (part.sign, -part.sign if name == "Sub" else part.sign)
        pairs = zip(following, signs, strict=False)
        return (replace(part, edge=one, sign=sign) for one, sign in pairs if one[0] is not None)
    if name in ("Stack", "Cat"):
        return (replace(part, edge=one) for one in following if one[0] is not None)
    if name in _HALVES and following[0][0] is not None:
        factor = constant_factor(node, name == "Div")
        if factor is not None:
            return iter([replace(part, edge=following[0], sign=math.copysign(part.sign, factor * part.sign))])
    if name in _HALVES and len(inner := inner_of(node)) == 1:
        weights = constant_of(node)[0] if name == "Mul" or following[1][0] is None else None
        if weights is not None and weights.size and bool((weights >= 0).all()):
            return iter([replace(part, edge=inner[0])])  # a mask, or counts
    return None
