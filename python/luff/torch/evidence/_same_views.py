"""Finds two results of a model that are equal in every bit and that a loss compares with each other: two views of a
sample that are one tensor.

A bounded walk before the graph is freed, in steps whose samples are taken; nothing is computed with torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_edges import Edge, inner_of, past_edge, shape_of
from luff.torch.evidence._loss_graph import constant_factor

__all__ = ["Result", "SameViews", "meeting_of"]

_LOOKS = 8  # in a row that show it before it is told
_MOST = 8  # events of a run
_WALK = 1024  # nodes between a root and what the model returned
_ROWS = 4  # at least, of which two differ
_LEAF = "torch::autograd::AccumulateGrad"
_DIFFERENCES = frozenset(("Sub", "MseLoss", "SmoothL1Loss", "HuberLoss"))
_PRODUCTS = frozenset(("Mul", "Mm", "Bmm", "Cdist", "EuclideanDist", "CdistEuclidean"))
_TURNS = frozenset(("T", "Transpose", "Permute", "Expand", "View", "UnsafeView", "ReshapeAlias"))
_JOINS = frozenset(("Cat", "Stack"))
#: What may be done to both results before they meet: functions of their values that draw and choose nothing.
_SAME = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "ToCopy")
    + ("Alias", "Expand", "T", "Transpose", "Permute", "Mm", "Addmm")
    + ("Bmm", "Mul", "Div", "Add", "Sub", "Neg", "Rsub")
    + ("Pow", "Sqrt", "Exp", "Log", "Sum", "Mean", "Var")
    + ("Std", "Norm", "LinalgVectorNorm", "Clamp", "ClampMin", "Relu", "Gelu")
    + ("Silu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "Softmax", "LogSoftmax")
    + ("NativeBatchNorm", "CudnnBatchNorm", "NativeLayerNorm", "Convolution")
)


class Result(Protocol):
    """The first rows of what a model has returned."""

    edge: tuple[int, str, int]
    words: Array


class SameViews(WaitingEvents):
    """Tells of such results once they were so in eight looks in a row, and when that is over."""

    def __init__(self, waiting: list[dict[str, Any]]) -> None:
        super().__init__()
        self.waiting = waiting  # of the formula, so that steps look at one list
        self._looks = 0
        self._told = 0  # events

    def root(self, root: Any, results: Sequence[Result]) -> None:
        """Called with the root of a backward pass, and the results of the step's models, two at least."""
        if root.grad_fn is None or self._told >= _MOST or len({one.edge for one in results}) < 2:
            return
        meeting = ""
        for one, other in _equal(results):
            meeting = meeting_of((root.grad_fn, root.output_nr), one.edge, other.edge)
            if meeting:
                break
        if not meeting:
            if self._looks >= _LOOKS:
                self._told += 1
                self.waiting.append({"kind": "same_view", "compared": ""})
            self._looks = 0
            return
        self._looks += 1
        if self._looks == _LOOKS:
            self._told += 1
            self.waiting.append({"kind": "same_view", "compared": meeting})


def _equal(results: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    for place, one in enumerate(results):
        rows = one.words.reshape(len(one.words), -1)
        if len(rows) < _ROWS or bool((rows == rows[0]).all()):
            continue  # one answer for all
        for other in results[place + 1 :]:
            if one.edge != other.edge and np.array_equal(one.words, other.words):
                yield one, other


def meeting_of(root: Edge, one: tuple[int, str, int], other: tuple[int, str, int]) -> str:
    """Returns the operation of a loss that compares two results, to both of which the same was done before: of what
    is joined, a product of it with itself; "" if there is none. Results are given as in `Result.edge`.
    """
    nodes, reaches = _walk(root, one, other)
    for node in nodes:
        name, inner = operation_of(node), inner_of(node)
        if len(inner) < 2 or name not in _DIFFERENCES | _PRODUCTS | _JOINS:
            continue
        first, second = (next((edge for edge in inner if reaches.get(edge) == side), None) for side in (1, 2))
        if first is None or second is None:
            continue
        if name in _PRODUCTS:
            first, second = _unturned(first), _unturned(second)
        if not _alike(first, second, one, other):
            continue
        if name == "Mul" and not _is_summed(nodes, node):
            continue  # a square, as in an equation whose solution is learnt
        if name not in _JOINS or _multiplied(nodes, node):
            return name
    return ""


def _walk(
    root: Edge, one: tuple[int, str, int], other: tuple[int, str, int]
) -> tuple[list[Any], dict[Edge, int]]:
    """Returns the nodes from a root on, as far as two results, and for each edge which of these lie behind it: 1, 2, or
    3 for both.
    """
    reaches: dict[Edge, int] = {}
    nodes: dict[Any, None] = {}
    stack = [(root, False)]
    while stack and len(reaches) < _WALK:
        edge, opened = stack.pop()
        node, place = edge
        if opened:
            reaches[edge] = _joined(reaches, node)
            continue
        if edge in reaches:
            continue
        key = (node._sequence_nr(), node.name(), place)
        if key in (one, other) or node.name() == _LEAF:
            reaches[edge] = 1 if key == one else 2 if key == other else 0
            continue
        nodes[node] = None
        stack.append((edge, True))
        stack.extend((inner, False) for inner in inner_of(node) if inner not in reaches)
    return list(nodes), reaches


def _joined(reaches: dict[Edge, int], node: Any) -> int:
    found = 0
    for inner in inner_of(node):
        found |= reaches.get(inner, 0)
    return found


def _alike(first: Edge, second: Edge, one: tuple[int, str, int], other: tuple[int, str, int]) -> bool:
    """Returns whether two edges are made of two results by the same operations, with the same weights and numbers."""
    pairs, seen = [(first, second)], set()
    while pairs:
        pair = pairs.pop()
        (node, place), (twin, twin_place) = pair
        if pair in seen or pair[0] == pair[1]:
            continue
        seen.add(pair)
        if len(seen) > _WALK or place != twin_place or node.name() != twin.name():
            return False
        key, twin_key = (node._sequence_nr(), node.name(), place), (twin._sequence_nr(), twin.name(), place)
        if key == one and twin_key == other:
            continue
        if operation_of(node) not in _SAME or len(node.next_functions) != len(twin.next_functions):
            return False
        inner, inner_twin = inner_of(node), inner_of(twin)
        if len(inner) != len(inner_twin) or not inner:
            return False
        if operation_of(node) in ("Mul", "Div") and len(inner) == 1:
            divide = operation_of(node) == "Div"
            factor = constant_factor(node, divide)
            if factor is None or factor != constant_factor(twin, divide):
                return False
        elif operation_of(node) in ("Add", "Sub") and len(inner) == 1:
            return False  # of something that may differ
        pairs.extend(zip(inner, inner_twin, strict=True))
    return True


def _is_summed(nodes: list[Any], product: Any) -> bool:
    """Returns whether the numbers of each row of a product are summed up."""
    if shape_of((product, 0))[-1:] in ((), (1,)):
        return False
    return any(
        operation_of(node) in ("Sum", "Mean") and past_edge(edge)[0] is product
        for node in nodes
        for edge in inner_of(node)
    )


def _unturned(edge: Edge) -> Edge:
    """Returns an edge before its axes were exchanged: rows are multiplied by rows."""
    for _ in range(_LOOKS):
        if operation_of(edge[0]) not in _TURNS:
            break
        edge = edge[0].next_functions[0]
    return edge


def _multiplied(nodes: list[Any], joined: Any) -> bool:
    """Returns whether all of what was joined is compared with all of it."""
    for node in nodes:
        inner = inner_of(node)
        if operation_of(node) in _PRODUCTS | {"Sub"} and len(inner) == 2 and operation_of(node) != "Mul":
            if all(_leads_to(edge[0], joined) for edge in inner):
                return True
    return False


def _leads_to(node: Any, goal: Any) -> bool:
    reached = [node]
    for count, one in enumerate(reached):  # grows during the loop
        if one is goal:
            return True
        if count >= _WALK // 8 or operation_of(one) not in _SAME:
            continue
        reached.extend(edge[0] for edge in inner_of(one))
    return False
