"""Targets of losses that a script writes itself where they are shares of classes, or numbers from 0 to 1: smoothed
labels, answers of a teacher, and cross entropies of two classes in the forms that need no logarithm of a sigmoid.

The graph has saved what is needed. Tensors are read as memory, and nothing is computed with torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from luff._rows import rows_that_fit
from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import constant_of, is_binary, is_hot, past
from luff.torch.evidence._written_likelihoods import Half, Pair, likelihood_of, logs_of, pair_of

__all__ = ["focal_of", "half_of_logits", "joined_logits", "rows_of_both", "shares_of"]

_ELEMENTS = 1 << 20
_ROWS = 256  # whose numbers are compared one by one
_ONE = 1e-3  # shares may sum to this much more or less than 1
_SAME = 1e-5
_IGNORED = -100
_DEPTH = 6  # nodes between a focal loss and its power
_LOGARITHMS = ("Log", "Log1P", "Softplus")


def shares_of(node: Any, weights: Array) -> tuple[str, Pair] | None:
    """Returns a loss with shares for targets: ids where they are smoothed labels, the same numbers in other places.

    `weights`: what the logarithms are multiplied by. Rows of zeros do not count.
    """
    if weights.ndim < 2 or weights.size > _ELEMENTS or (weights < 0).any():
        return None
    sums = weights.sum(axis=-1, dtype=np.float64)
    counts = np.abs(sums - 1) <= _ONE
    if not counts.any() or (sums[~counts] != 0).any():
        return None
    logs = logs_of(node)
    if logs is None or logs[2].shape != weights.shape:
        return None
    if _is_smoothed(weights[counts]):
        classes = np.where(counts, weights.argmax(-1), _IGNORED)
        pair = pair_of(*logs, classes)
        return None if pair is None else ("NLLLoss", pair)
    if not counts.all():
        return None
    tensor, shape, values = logs
    rows = rows_that_fit(shape, values.size * 4)
    if not rows:
        return None
    value = -float((weights * values).sum(axis=-1, dtype=np.float64).mean())
    kept = np.ascontiguousarray(values[:rows], np.float32)
    given = np.ascontiguousarray(weights[:rows], np.float32)
    return "CrossEntropyLoss", Pair(torch.float32, shape, kept, torch.float32, shape, given, value)


def _is_smoothed(rows: Array) -> bool:
    """Returns whether each row has one largest number, the same in all, and else one other, or a 0 at most once."""
    top = rows.max(axis=-1)
    rest = rows.sum(axis=-1) - top
    if (np.abs(top - top[0]) > _SAME).any() or (np.abs(rest - rest[0]) > _ONE).any():
        return False
    others = np.sort(rows[:_ROWS], axis=-1)[:, :-1]  # the sums of all rows are alike
    if (others[:, -1] > top[0] - _SAME).any():
        return False
    flat = others[:, 1:] if others.shape[1] > 1 else others
    same = bool((np.abs(flat - flat.flat[0]) <= _SAME).all())
    first = others[:, 0]
    return same and bool(((np.abs(first - flat.flat[0]) <= _SAME) | (first == 0)).all())


def rows_of_both(chosen: Array, weights: Array) -> Array | None:
    """Returns the weights of rows that a mask chooses, unless they are rows of zeros and a one: the mask may then be
    one of rewards.
    """
    if weights.ndim < 2 or weights.shape[:-1] != chosen.shape or not ((chosen == 0) | (chosen == 1)).all():
        return None
    if is_binary(np.abs(weights)):
        return None
    both: Array = weights * chosen[..., None]
    return both


def focal_of(node: Any, weight: float) -> Pair | None:
    """Returns the log-probabilities and classes of a product of chosen logarithms and a power of what they lack.

    `weight`: with which the product enters the loss, which must be minus it.
    """
    children = [child for child, _ in node.next_functions]
    if len(children) != 2 or None in children:
        return None
    for power, other in (children, children[::-1]):
        sign, weights = _power(power)
        if sign * weight >= 0:
            continue
        if weights is not None and not (is_binary(weights) and is_hot(weights)):
            weights = None  # of classes
        pair = likelihood_of(past(other), weights)
        if pair is not None:
            return pair
    return None


def _power(node: Any) -> tuple[float, Array | None]:
    """Returns the sign of a power of 1 - p, times weights, and the weights; 0 for anything else."""
    sign, weights = 1.0, None
    for _ in range(_DEPTH):
        node = past(node)
        name = operation_of(node)
        if name == "Neg":
            sign, node = -sign, node.next_functions[0][0]
        elif name == "Mul":
            factor = constant_factor(node, False)
            if factor is None:
                weights, node = constant_of(node)
            else:
                sign, node = math.copysign(sign, factor * sign), node.next_functions[0][0]
        elif name == "Pow":
            node = node.next_functions[0][0]
        else:
            lacks = name == "Rsub" or (name == "Sub" and node.next_functions[0][0] is None)
            return sign if lacks else 0.0, weights
    return 0.0, None


def half_of_logits(node: Any, weights: Array | None, weight: float) -> Half | None:
    """Returns a part of ``softplus(z) - z * y`` or of ``max(z, 0) - z * y + log(1 + exp(-abs(z)))``."""
    name = operation_of(node)
    if weights is not None:
        if (
            name == "Softplus" and weight > 0 and node._saved_beta == 1
        ):  # y * softplus(-z), (1 - y) * softplus(z)
            values = _values(node._saved_self)
            return (
                None
                if values is None or values.shape != weights.shape
                else Half("LogSigmoid", -values, weights)
            )
        if weight < 0 and weights.size and weights.min() >= 0 and weights.max() <= 1:
            return Half("Product", weights, weights, (node, 0), scale=-weight)
        return None
    if weight <= 0:
        return None
    inner = _behind_logarithm(node) if name in _LOGARITHMS else None
    if inner is not None:
        values = _values(inner._saved_self)
        return None if values is None else Half("OfAbs", values, None, inner.next_functions[0], scale=weight)
    if name == "Softplus" and node._saved_beta == 1:
        values = _values(node._saved_self)
        return None if values is None else Half(name, values, None, node.next_functions[0], scale=weight)
    if name in ("Relu", "ClampMin", "Clamp", "Maximum"):
        return Half("Positive", np.zeros(0), None, node.next_functions[0])
    return None


def _behind_logarithm(node: Any) -> Any:
    """Returns the node of an absolute value in log(1 + exp(-abs(z))), or softplus(-abs(z))."""
    softplus = operation_of(node) == "Softplus"
    inner = past(node.next_functions[0][0])
    if operation_of(node) == "Log" and operation_of(inner) == "Add":
        inner = past(next((child for child, _ in inner.next_functions if child is not None), None))
    if not softplus:
        if operation_of(inner) != "Exp":
            return None
        inner = past(inner.next_functions[0][0])
    inner = past(inner.next_functions[0][0]) if operation_of(inner) == "Neg" else None
    return inner if operation_of(inner) == "Abs" else None


def joined_logits(halves: list[Half]) -> tuple[str, Pair] | None:
    """Returns the cross entropy of two classes that parts are together."""
    products = [half for half in halves if half.name == "Product"]
    for half in halves:
        if half.name not in ("Softplus", "OfAbs"):
            continue
        for product in products:
            if not math.isclose(product.scale, half.scale, rel_tol=1e-4):
                continue
            if (
                past(product.source[0]) is not past(half.source[0])
                or product.values.shape != half.values.shape
            ):
                continue
            if half.name == "OfAbs" and not any(
                one.name == "Positive" and past(one.source[0]) is past(half.source[0]) for one in halves
            ):
                continue
            return _of_logits(half.values, product.values)
    return None


def _of_logits(scores: Array, targets: Array) -> tuple[str, Pair] | None:
    given = scores.astype(np.float32)
    rows = rows_that_fit(given.shape, given.nbytes)
    if not given.ndim or not rows or (targets == targets.flat[0]).all():
        return None  # a single number says nothing of the inputs
    terms = np.maximum(given, 0) - given * targets + np.log1p(np.exp(-abs(given)))
    kept = np.ascontiguousarray(targets[:rows], np.float32)
    value = float(terms.mean(dtype=np.float64))
    shape = tuple(given.shape)
    return "BCEWithLogitsLoss", Pair(torch.float32, shape, given[:rows], torch.float32, shape, kept, value)


def _values(tensor: Any) -> Array | None:
    return array_of(tensor) if tensor.numel() <= _ELEMENTS else None
