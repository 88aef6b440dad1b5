"""Follows the graph of a loss that a script writes itself: what it sums up, and which probabilities targets choose.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import INTEGERS, Array, address_of, array_of, array_view, is_readable
from luff.torch.evidence._loss_graph import constant_factor

__all__ = [
    "DEPTH",
    "MOVES",
    "Choice",
    "Term",
    "axis_of",
    "choice_of",
    "constant_of",
    "core",
    "is_binary",
    "is_hot",
    "other_axis",
    "past",
    "read",
    "terms_of",
]

_NODES = 64  # that are followed from a root
DEPTH = 16  # nodes of a term
_ELEMENTS = 1 << 16  # of a target that is read
MOVES = frozenset(
    (
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Clone",
        "ToCopy",
        "Alias",
        "Select",
        "Slice",
    )
)


@dataclass(slots=True)
class Term:
    """A part of a loss that is no sum, mean or product with a constant."""

    node: Any
    sign: float
    averaged: bool  # it is a mean or a sum
    shifted: bool  # what is averaged is a difference to something without a gradient
    weighted: bool = False  # by a number that the script may have worked out: a gain of either sign


@dataclass(slots=True)
class Choice:
    """A probability, or its logarithm, of targets."""

    axis: int | None = None  # along which targets choose
    repeated: bool = False  # two rows of a matrix choose the same
    hot: Array | None = None  # the targets, as rows of zeros and a one
    normalised: int | None = None  # axis of the softmax
    square: bool = False  # as many classes as rows: either axis may be that of the classes
    logarithm: bool = False
    binary: bool = False  # multiplied by zeros and ones
    complement: bool = False  # one minus the probability
    sigmoid: Any = None  # node that made it


def past(node: Any) -> Any:
    """Returns a node, or the first one behind it that does more than move values."""
    for _ in range(DEPTH):
        if operation_of(node) not in MOVES:
            break
        node = node.next_functions[0][0]
    return node


def core(node: Any) -> Any:
    """Returns a node without moves, and without constant factors above 0."""
    for _ in range(DEPTH):
        node = past(node)
        name = operation_of(node)
        if name not in ("Mul", "Div") or not (constant_factor(node, name == "Div") or 0.0) > 0.0:
            break
        node = node.next_functions[0][0]
    return node


def _parts_of(term: Term) -> Iterator[Term] | None:
    """Returns what a sum, mean or product with a constant is made of; None for another operation."""
    name, following = operation_of(term.node), [child for child, _ in term.node.next_functions]
    if name in MOVES:
        return iter([replace(term, node=following[0])])
    if name in ("Mean", "Sum"):
        return iter([replace(term, node=following[0], averaged=True)])
    if name in ("Neg", "Rsub"):
        return iter([replace(term, node=following[0], sign=-term.sign)])
    if name in ("Add", "Sub"):
        shifted = term.shifted or (name == "Sub" and None in following and term.averaged)
        signs = (term.sign, -term.sign if name == "Sub" else term.sign)
        pairs = zip(following, signs, strict=False)
        return (replace(term, node=n, sign=sign, shifted=shifted) for n, sign in pairs if n is not None)
    if name in ("Mul", "Div"):
        factor = constant_factor(term.node, name == "Div")
        if factor is not None and following[0] is not None:
            sign, weighted = term.sign if factor > 0 else -term.sign, term.weighted or name == "Mul"
            return iter([replace(term, node=following[0], sign=sign, weighted=weighted)])
    return None


def terms_of(node: Any) -> list[Term]:
    """Returns what a node sums up; nothing if that is too much."""
    found: list[Term] = []
    queue = [] if node is None else [Term(node, 1.0, False, False)]
    for count, term in enumerate(queue):  # grows during the loop
        if count >= _NODES:
            return []
        parts = _parts_of(term)
        if parts is None:
            found.append(term)
        else:
            queue.extend(parts)
    return found


def choice_of(node: Any) -> Choice | None:
    """Follows a term to the softmax or sigmoid behind it; None if it has none, or an operation lies between that
    has no place in a likelihood.
    """
    choice = Choice()
    for _ in range(DEPTH):
        name = operation_of(node)
        following = [child for child, _ in node.next_functions] if node is not None else []
        if name in ("Softmax", "LogSoftmax"):
            choice.logarithm |= name == "LogSoftmax"
            result = node._saved_result
            choice.normalised = axis_of(node._saved_dim, result.dim())
            choice.square |= result.dim() == 2 and result.shape[0] == result.shape[1]
            return choice
        if name == "Sigmoid":
            choice.sigmoid = node
            return choice
        if name == "Div":
            return choice if _normalised(node, choice) else None
        if name in ("Log", "Log2", "Log10"):
            if choice.logarithm:
                return None
            choice.logarithm = True
        elif name in ("Gather", "Index") or name == "Mul":
            if choice.axis is not None or choice.binary or not _chooses(node, name, choice):
                return None
            if name == "Mul":
                node = next((child for child in following if child is not None), None)
                continue
        elif name == "Rsub" or (name == "Sub" and following[0] is None):
            choice.complement = not choice.complement
            node = next((child for child in following if child is not None), None)
            continue
        elif name in MOVES:
            if choice.axis is not None and name not in ("Clone", "ToCopy", "Alias"):
                return None  # axes have other numbers
        elif not (name in ("Clamp", "ClampMin") or (name == "Add" and None in following)):
            return None
        node = following[0] if following else None
    return None


def axis_of(dim: int, count: int) -> int:
    dim -= 1 << 64 if dim >> 63 and dim > 0 else 0
    return dim + count if dim < 0 else dim


def _chooses(node: Any, name: str, choice: Choice) -> bool:
    """Notes along which axis an operation takes the entries of targets."""
    if name == "Gather":
        index = node._saved_index
        axis = axis_of(node._saved_dim, index.dim())
        places = read(index)
        if places is None or index.shape[axis] != 1 or _counts(places.reshape(-1)):
            return False
        choice.axis = axis
        choice.repeated = places.ndim == 2 and _repeats(places)
        return True
    if name == "Index":
        indices = [read(index) for index in node._saved_indices]
        if len(indices) != 2 or any(index is None or index.ndim != 1 for index in indices):
            return False
        rows, classes = indices
        if rows is None or not _counts(rows) or classes is None or _counts(classes):
            return False
        choice.axis, choice.repeated = 1, _repeats(classes)
        return True
    target, _ = constant_of(node)
    if target is None or not is_binary(target):
        return False
    if is_hot(target):
        choice.axis, choice.hot = target.ndim - 1, target
    else:
        choice.binary = True
    return True


def constant_of(node: Any) -> tuple[Array | None, Any]:
    """Returns the factor of a product that has no gradient, and the node of the other."""
    following = [child for child, _ in node.next_functions]
    if len(following) != 2 or (following[0] is None) == (following[1] is None):
        return None, None
    tensor = node._saved_other if following[1] is None else node._saved_self
    return read(tensor), following[0] or following[1]


def read(tensor: Any) -> Array | None:
    """Returns the memory of targets as an array; None if it cannot be read, or there is too much of it."""
    if not isinstance(tensor, torch.Tensor) or tensor.numel() > _ELEMENTS:
        return None
    kind = INTEGERS.get(tensor.dtype)
    if kind is None:
        return array_of(tensor)
    return array_view(tensor, kind) if is_readable(tensor) and address_of(tensor) else None


def is_binary(values: Array) -> bool:
    """Whether the values are zeros and ones, some of each."""
    ones = int(np.count_nonzero(values == 1))
    return 0 < ones < values.size and ones + int(np.count_nonzero(values == 0)) == values.size


def is_hot(values: Array) -> bool:
    """Whether each row of zeros and ones has a single one."""
    return values.ndim >= 2 and values.shape[-1] > 1 and bool((values.sum(axis=-1) == 1).all())


def _counts(values: Array) -> bool:
    """Whether the values are 0, 1, 2, …: each row and its own number."""
    return bool(values.size > 1 and (values == np.arange(values.size)).all())


def _repeats(values: Array) -> bool:
    return bool(np.unique(values).size < values.size)


def _normalised(node: Any, choice: Choice) -> bool:
    """Notes the axis of a softmax that is written as a quotient of exponentials and their sum."""
    top, total = (child for child, _ in node.next_functions)
    if operation_of(top) != "Exp" or operation_of(total) != "Sum":
        return False
    summed = total.next_functions[0][0]
    if summed is not top and (operation_of(summed) != "Exp" or summed.next_functions != top.next_functions):
        return False
    sizes, dims = total._saved_self_sym_sizes, total._saved_dim
    if len(dims) != 1:
        return False
    choice.normalised = axis_of(dims[0], len(sizes))
    choice.square = len(sizes) == 2 and sizes[0] == sizes[1]
    return True


def other_axis(choice: Choice) -> bool:
    """Whether targets choose along another axis than that over which the probabilities sum to 1, and two of them
    choose the same: of pairs, each may choose but one.
    """
    axis = choice.normalised
    if choice.axis is None or axis is None or choice.axis == axis or choice.square:
        return False
    if choice.hot is None:
        return choice.repeated
    return axis < choice.hot.ndim and bool((choice.hot.sum(axis=axis) > 1).any())
