"""Finds errors that are divided by a scale which the model predicts, and which costs nothing: a likelihood without its
logarithm. The loss becomes 0 where the scale grows, whatever the predictions are.
"""

from __future__ import annotations

import math
from typing import Any

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.evidence._loss_graph import constant_factor, is_square, is_squared_error
from luff.torch.evidence._loss_terms import DEPTH, Term, past

__all__ = ["has_free_scale"]

_POSITIVE = frozenset(("Exp", "Softplus"))  # of any number, and as large, or as near to 0, as a model wants
_AROUND = frozenset(("Clamp", "ClampMin", "Sqrt", "Add"))
_LEAF = "torch::autograd::AccumulateGrad"
_NEAR = 64  # nodes behind an error, among which its scale may be


def has_free_scale(terms: list[Term]) -> bool:
    """Returns whether all terms of a loss are such errors; another term may be what the scale costs."""
    return bool(terms) and all(term.sign > 0 and _is_scaled(past(term.node)) for term in terms)


def _is_scaled(node: Any) -> bool:
    name, inner = operation_of(node), _inner(node)
    if name in ("Mul", "Div") and len(inner) == 2 and inner[0] is not inner[1]:
        error, scale = inner
        if name == "Mul" and not _is_error(error):
            error, scale = scale, error
        return _is_error(error) and _is_free(_scale_of(scale), error)
    if node is not None and is_square(node):  # of an error in units of its deviation
        ratio = past(inner[0])
        parts = _inner(ratio)
        if operation_of(ratio) in ("Mul", "Div") and len(parts) == 2:
            error, scale = parts
            return _is_difference(error) and _is_free(_scale_of(scale), error)
    return False


def _is_free(scale: Any, error: Any) -> bool:
    """Returns whether a scale is no part of the prediction: counts over the rate that is predicted (Pearson's chi
    square), or an error relative to the prediction, grow with it. Nor may it be a parameter with a value for each
    error, as weights of points that an adversary raises.
    """
    if scale is None:
        return False
    leaf = past(scale.next_functions[0][0])
    if operation_of(leaf) == _LEAF and 1 < leaf.variable.numel() == math.prod(error._input_metadata[0].shape):
        return False
    return not any(
        one is scale or (one.name() == scale.name() and one.next_functions == scale.next_functions)
        for one in nodes_behind([error], _NEAR)
    )


def _inner(node: Any) -> list[Any]:
    return [] if node is None else [child for child, _ in node.next_functions if child is not None]


def _is_error(node: Any) -> bool:
    """Returns whether a node is the square of a prediction's error, times or over a number."""
    for _ in range(DEPTH):
        node = past(node)
        name = operation_of(node)
        if name == "MseLoss":
            return bool(node._saved_reduction == 0)
        if name not in ("Mul", "Div") or is_square(node) or constant_factor(node, name == "Div") is None:
            break
        node = node.next_functions[0][0]
    return node is not None and is_squared_error(node)


def _is_difference(node: Any) -> bool:
    node = past(node)
    return operation_of(node) in ("Sub", "Rsub") and len(_inner(node)) == 1


def _scale_of(node: Any) -> Any:
    """Returns the exponential or softplus that a node is, or its square or root, times numbers and plus numbers."""
    for _ in range(DEPTH):
        node = past(node)
        name, inner = operation_of(node), _inner(node)
        if name in _POSITIVE:
            return node
        if node is not None and is_square(node):
            node = inner[0]
        elif len(inner) == 1 and (name in _AROUND or name in ("Mul", "Div")):
            if name in ("Mul", "Div") and constant_factor(node, name == "Div") is None:
                return None
            node = inner[0]
        else:
            return None
    return None
