"""Finds gains of a policy that are part of the graph: log-probabilities of drawn actions, multiplied by something that
comes from the very values which another term of the loss fits to returns.

A bounded walk before the graph is freed; nothing is computed with torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._loss_graph import is_square

__all__ = ["gains_move"]

_WALK = 4096  # nodes of a gain
_DEPTH = 24  # nodes between a product and the choice of an action, and behind it
_SMALLER = frozenset(("Minimum", "Maximum", "Where"))  # PPO takes the smaller of two products
_REDUCES = frozenset(("Mean", "Sum", "Neg"))
_ERRORS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss"))
_DIFFERS = frozenset(("Sub", "Add"))
_JOINS = frozenset(("Stack", "Cat"))
_CHOOSES = frozenset(("Gather", "Index"))
_LIKELIHOODS = frozenset(("LogSoftmax", "Logsumexp", "Softmax"))
#: Between a product and a log-probability: its ratio to an older one, moves, and joins of steps.
_PASSES = _JOINS | {
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Clone",
    "ToCopy",
    "Alias",
    "Select",
    "Slice",
    "T",
    "Transpose",
    "Permute",
    "Exp",
    "Sub",
    "Neg",
    "Clamp",
    "ClampMin",
    "ClampMax",
}


def gains_move(nodes: Iterable[Any]) -> bool:
    """Returns whether one of a loss's terms is a product of log-probabilities of chosen actions and of a gain with a
    gradient, and the gain is made of a tensor without one, as rewards, and of values whose error is another of the
    terms. Values alone are weights that are learnt, and their error keeps them from 0.

    Parameters
    ----------
    nodes
        What the loss is a sum of.
    """
    nodes = list(nodes)
    values = [value for node in nodes for value in _fitted(node)]
    return bool(values) and any(_is_driven(product, values) for node in nodes for product in _products(node))


def _children(node: Any) -> list[Any]:
    return [] if node is None else [child for child, _ in node.next_functions if child is not None]


def _fitted(node: Any) -> list[Any]:
    """Returns what a squared, smooth absolute or Huber error fits to something without a gradient."""
    if is_square(node):
        difference = node.next_functions[0][0]
        found = _children(difference) if operation_of(difference) == "Sub" else []
    elif operation_of(node) in _ERRORS:
        found = _children(node)
    else:
        return []
    if len(found) != 1:
        return []
    value = found[0]
    for _ in range(_DEPTH):
        if operation_of(value) in _JOINS:
            return [value, *_children(value)]
        inner = _children(value)
        if operation_of(value) not in _PASSES or len(inner) != 1:
            break
        value = inner[0]
    return [value]


def _products(node: Any) -> Iterator[Any]:
    for one in _children(node) if operation_of(node) in _SMALLER else [node]:
        while operation_of(one) in _REDUCES and _children(one):  # the smaller of two means
            one = _children(one)[0]
        if operation_of(one) == "Mul":
            yield one


def _is_driven(product: Any, values: list[Any]) -> bool:
    one, other = (child for child, _ in product.next_functions[:2])
    if one is None or other is None:
        return False
    for chosen, gain in ((one, other), (other, one)):
        if _is_of_choices(chosen) and not _is_of_choices(gain):
            return _reaches(gain, values)
    return False


def _is_of_choices(node: Any) -> bool:
    """Returns whether a node gives log-probabilities of chosen classes, or their ratio to others."""
    chosen = False
    for _ in range(_DEPTH):
        name, inner = operation_of(node), _children(node)
        if chosen and (name in _LIKELIHOODS or any(operation_of(child) in _LIKELIHOODS for child in inner)):
            return True
        if not inner:
            return False
        if name in _CHOOSES:
            chosen = True
        elif name not in _PASSES and not (chosen and name == "Log"):
            return False
        node = inner[0]
    return False


def _reaches(node: Any, goals: list[Any]) -> bool:
    """Returns whether a gain is made of one of the goals, and of a difference or sum of a tensor without a gradient
    and of it.
    """
    queue = [(node, False)]
    seen = {(id(node), False)}
    for count, (one, differs) in enumerate(queue):  # grows during the loop
        if differs and any(one is goal for goal in goals):
            return True
        if count >= _WALK:
            return False
        # A number may stand at the right only: 1 - x is another operation.
        differs = differs or (operation_of(one) in _DIFFERS and one.next_functions[0][0] is None)
        for child in _children(one):
            if (id(child), differs) not in seen:
                seen.add((id(child), differs))
                queue.append((child, differs))
    return False
