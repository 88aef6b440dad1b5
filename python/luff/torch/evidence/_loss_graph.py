"""Derives the loss from the root of a backward pass: its value before scaling, its kind, its inputs.

A bounded walk through the graph, before the backward pass frees it. Saved tensors are never touched while
saved-tensor hooks are in use: unpacking them would compute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import address_of, array_view, is_readable, read_scalar

__all__ = [
    "LossNode",
    "analyse",
    "behind",
    "constant_factor",
    "counted_targets",
    "is_square",
    "is_squared_error",
    "parts",
]

_KINDS = {
    "NllLossBackward0": "NLLLoss",
    "NllLoss2DBackward0": "NLLLoss",
    "MseLossBackward0": "MSELoss",
    "BinaryCrossEntropyBackward0": "BCELoss",
    "BinaryCrossEntropyWithLogitsBackward0": "BCEWithLogitsLoss",
    "SmoothL1LossBackward0": "SmoothL1Loss",
    "HuberLossBackward0": "HuberLoss",
    "SoftMarginLossBackward0": "SoftMarginLoss",
    "MultiMarginLossBackward0": "MultiMarginLoss",
    "MultilabelMarginLossBackward0": "MultiLabelMarginLoss",
    "CtcLossBackward0": "CTCLoss",
}
_SUM = 2  # value of torch's sum reduction
_WALK_LIMIT = 64
_TRANSPARENT = (
    "ToCopyBackward0",
    "CloneBackward0",
    "ViewBackward0",
    "SqueezeBackward0",
    "UnsafeViewBackward0",
)


_SUMS = (
    *(name.rstrip("0") for name in _TRANSPARENT),
    "AddBackward",
    "SubBackward",
    "SumBackward",
    "MeanBackward",
    "StackBackward",
    "CatBackward",
    "UnsqueezeBackward",
)


@dataclass(slots=True)
class LossNode:
    """The loss as the graph shows it."""

    factor: float = 1.0  # root = loss node * factor
    kind: str = ""  # class name of the loss that made the root; "" if unknown
    base: Any = None  # node that made the root, without factors and copies
    node: Any = None  # the first loss node within reach, for its saved inputs
    node_kind: str = ""  # kind of that node (its input is that of NLLLoss: log-probabilities)
    compiled: bool = False
    count: float = 0.0  # number of targets of a cross entropy that is a sum over them; 0 for other losses


def counted_targets(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Returns how many targets a call of cross entropy sums up; 1 if unknown."""
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if kind not in ("CrossEntropyLoss", "NLLLoss") or len(args) > 2 or kwargs.get("weight") is not None:
        return 1
    if not (isinstance(target, torch.Tensor) and target.dtype is torch.int64 and is_readable(target)):
        return 1
    if not target.is_contiguous() or not target.numel() or not address_of(target):
        return 1
    counted = array_view(target, np.int64) != kwargs.get("ignore_index", -100)
    return max(int(np.count_nonzero(counted)), 1)


def constant_factor(node: Any, divide: bool) -> float | None:
    """Returns the number by which a product or quotient multiplies its first argument; None if it is none."""
    following = node.next_functions
    if len(following) == 2 and following[1][0] is not None:
        return None
    try:
        other = node._saved_other
    except (RuntimeError, AttributeError):
        return None
    value = float(other) if isinstance(other, int | float) else read_scalar(other)
    if value is None or value == 0.0 or value != value:
        return None
    return 1.0 / value if divide else value


def analyse(root: Any, saved_ok: bool, search: bool = True, scaled: bool = False) -> LossNode:
    """Describes the loss whose backward pass is about to run.

    Parameters
    ----------
    root
        Root tensor of the backward pass.
    saved_ok
        False while saved-tensor hooks are in use: names of nodes are read, saved tensors are not.
    search
        Whether to search for a loss farther away if the root was not made by one.
    scaled
        Whether the root is a product with a loss scale that is not known. The factor is then without it.
    """
    result = LossNode()
    node = root.grad_fn
    if scaled and node is not None and node.name() == "MulBackward0":
        node = node.next_functions[0][0]
    for _ in range(8):
        if node is None:
            return result
        name = node.name()
        if name in ("DivBackward0", "MulBackward0") and saved_ok:
            factor = constant_factor(node, name == "DivBackward0")
            if factor is None:
                break
            result.factor *= factor
        elif name not in _TRANSPARENT:
            break
        node = node.next_functions[0][0]
    else:
        return result
    if node is None:
        return result
    result.base = node
    name = node.name()
    if name in _KINDS:
        result.node, result.node_kind = node, _KINDS[name]
        result.kind = _public_kind(node, result.node_kind)
        if saved_ok and result.node_kind == "NLLLoss":
            result.count = _summed(node)
        return result
    if "CompiledFunction" in name:
        result.compiled = True
    elif search:
        result.node, result.node_kind = _search(node)
    return result


def behind(root: Any, numbers: set[int]) -> set[int]:
    """Returns which of the nodes with these sequence numbers are among the 64 nearest behind a root."""
    found: set[int] = set()
    for node in nodes_behind(nodes_of([root]), _WALK_LIMIT):
        if (number := node._sequence_nr()) in numbers:
            found.add(number)
            if len(found) == len(numbers):
                break
    return found


def parts(root: Any, numbers: Container[int]) -> list[tuple[Any, float]]:
    """Returns what a root sums up: the nodes of its parts, and their weights.

    A part is a call of a loss (`numbers` holds its node), or the first node of its branch that is no sum, mean or
    product with a constant. A part that is summed over its elements, not averaged, has the weight of their mean.
    The weight is infinite, with the right sign, if the number of its elements is unknown, and where the walk ends
    after 64 nodes.
    """
    found: list[tuple[Any, float]] = []
    queue, seen = deque([(root.grad_fn, 1.0)] if root.grad_fn is not None else []), {root.grad_fn}
    while queue:
        node, weight = queue.popleft()
        called = node._sequence_nr() in numbers
        following = [
            (behind, factor)
            for place, (behind, _) in enumerate(node.next_functions)
            if behind is not None and (factor := _weight(node, place)) is not None
        ]
        if called or not following or len(seen) > _WALK_LIMIT:
            if getattr(node, "_saved_reduction", 1) == _SUM:
                weight *= _summed(node) or math.inf
            elif following and not called:
                weight *= math.inf
            found.append((node, weight))
            continue
        for behind, factor in following:
            if behind not in seen:
                seen.add(behind)
                queue.append((behind, weight * factor))
    return found


def is_square(node: Any) -> bool:
    """Returns whether a node squares something."""
    if node.name() == "PowBackward0":
        return bool(node._saved_exponent == 2)
    following = node.next_functions
    return node.name() == "MulBackward0" and following[0][0] is not None and following[0] == following[1]


_STATISTICS = ("MeanBackward", "SumBackward", "VarBackward", "StdBackward")


def is_squared_error(node: Any) -> bool:
    """Returns whether a node squares the difference between something with a gradient and something without: the
    error of a prediction. What a mean, a sum or a variance gives is a statistic, whose square may be wanted large.
    """
    difference = node.next_functions[0][0] if is_square(node) else None
    if difference is None or not difference.name().startswith(("SubBackward", "RsubBackward")):
        return False
    sides = [side for side, _ in difference.next_functions if side is not None]
    return len(sides) == 1 and not sides[0].name().startswith(_STATISTICS)


def _weight(node: Any, place: int) -> float | None:
    """Returns the factor with which an argument goes into an operation's result; None if it is unknown.

    Of a sum it is the number of terms: the factor of their mean.
    """
    name = node.name().rstrip("0123456789")
    if name == "NegBackward" or (name == "SubBackward" and place == 1):
        return -1.0
    if name in ("MulBackward", "DivBackward"):
        return constant_factor(node, name == "DivBackward")
    if name == "SumBackward":
        return _terms(node)
    return 1.0 if name in _SUMS else None


def _terms(node: Any) -> float:
    """Returns how many elements a sum adds up for each of its results."""
    try:
        sizes = node._saved_self_sym_sizes
        dims = getattr(node, "_saved_dim", None)
    except (RuntimeError, AttributeError):
        return math.inf
    return float(
        math.prod(sizes if not dims else (sizes[dim - (1 << 64) if dim >> 63 else dim] for dim in dims))
    )


def _summed(node: Any) -> float:
    try:
        count = read_scalar(node._saved_total_weight) if node._saved_reduction == _SUM else None
    except (RuntimeError, AttributeError):
        return 0.0
    return count if count is not None and count > 0.0 else 0.0


def _public_kind(node: Any, kind: str) -> str:
    if kind == "NLLLoss":
        following = node.next_functions
        if following and following[0][0] is not None and following[0][0].name() == "LogSoftmaxBackward0":
            return "CrossEntropyLoss"
    return kind


def _search(start: Any) -> tuple[Any, str]:
    """Returns the first loss node among the 64 nodes nearest to `start`, breadth first."""
    for node in nodes_behind([start], _WALK_LIMIT):
        kind = _KINDS.get(node.name())
        if kind is not None:
            return node, kind
    return None, ""
