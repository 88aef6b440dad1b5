"""Likelihoods of targets that a script writes itself, as calls of torch's losses: log-probabilities, targets, value.

Cross entropies of classes that are chosen by an index, or by rows of zeros and a one; of two classes; as the difference
of a log-sum-exp and a score. The graph has saved what is needed. Tensors are read as memory, and nothing is computed
with torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from luff._rows import WHOLE_BYTES, rows_that_fit
from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of, copy_of_rows, is_readable
from luff.torch.evidence._loss_terms import axis_of, is_binary, is_hot, past, read

__all__ = ["Half", "Pair", "half_of", "joined", "likelihood_of", "logs_of", "pair_of"]

_ELEMENTS = 1 << 20  # of probabilities that are read
_SUM = 1e-2  # probabilities to which a small number was added may sum to this much more or less than 1
_SAME = 1e-3  # the same of a probability and its complement
_CHOICES = ("Gather", "Index")


@dataclass(slots=True)
class Pair:
    """The memory of the first rows of an output and its targets."""

    dtype: Any
    shape: tuple[int, ...]  # of the whole output
    output: Array
    target_dtype: Any
    target_shape: tuple[int, ...]
    target: Array
    value: float = 0.0


@dataclass(slots=True)
class Half:
    """A part of a loss that is a likelihood only together with another one."""

    name: str  # "Log", "LogSigmoid", "Logsumexp", "Gather", or as in _written_targets.py
    values: Array  # what it is taken of; of a choice its classes
    weights: Array | None = None
    source: Any = None  # the node that made the scores, and which of its results they are
    shape: tuple[int, ...] = ()
    scale: float = 0.0  # with which it enters the loss, of parts that must have the same


def likelihood_of(node: Any, weights: Array | None) -> Pair | None:
    """Returns the log-probabilities and the classes behind a part of a loss; None if it is anything else.

    `weights`: what the part was multiplied by element by element.
    """
    name = operation_of(node)
    if weights is not None:
        logs = logs_of(node) if is_binary(weights) and is_hot(weights) else None
        if logs is None or logs[2].shape != weights.shape:
            return None
        return pair_of(*logs, weights.argmax(-1))
    if name in _CHOICES:
        logs = logs_of(node.next_functions[0][0])
        return None if logs is None else pair_of(*logs, _classes(node, name, logs[1]))
    inner = past(node.next_functions[0][0]) if name == "Log" else None
    inner = _past_epsilon(inner)
    if operation_of(inner) not in _CHOICES:
        return None
    logs = _logs_of_probabilities(_probabilities(past(inner.next_functions[0][0])))
    return None if logs is None else pair_of(*logs, _classes(inner, operation_of(inner), logs[1]))


def half_of(node: Any, weights: Array | None, weight: float) -> Half | None:
    """Returns a part that may belong to another one. `weight`: with which it enters the loss."""
    name = operation_of(node)
    if name in ("Log", "LogSigmoid") and weights is not None and weight < 0:
        values = array_of(node._saved_self) if node._saved_self.numel() <= _ELEMENTS else None
        return None if values is None or values.shape != weights.shape else Half(name, values, weights)
    if weights is not None:
        return None
    if name == "Logsumexp" and weight > 0:
        scores = node._saved_self
        last = [axis_of(dim, scores.dim()) for dim in node._saved_dim] == [scores.dim() - 1]
        values = array_of(scores) if last and scores.numel() <= _ELEMENTS else None
        return (
            None if values is None else Half(name, values, None, node.next_functions[0], tuple(scores.shape))
        )
    if name in _CHOICES and weight < 0:
        source = made, place = node.next_functions[0]
        shape = tuple(made._input_metadata[place].shape)
        classes = _classes(node, name, shape)
        return None if classes is None else Half("Gather", classes, None, source, shape)
    return None


def joined(halves: list[Half], parts: int) -> tuple[str, Pair] | None:
    """Returns the kind of loss that two parts are together, and its arguments; `parts`: of how many the whole loss is
    made. A log-sum-exp less a score is a loss only by itself: beside another one it may be a penalty on values of
    actions.
    """
    for place, one in enumerate(halves):
        for other in halves[place + 1 :]:
            if one.weights is not None and other.weights is not None:
                found = _binary(one, other)
            elif (
                {one.name, other.name} == {"Logsumexp", "Gather"}
                and one.source == other.source
                and parts == 2
            ):
                scores, chosen = (one, other) if one.name == "Logsumexp" else (other, one)
                pair = pair_of(None, scores.shape, scores.values, chosen.values, normalised=False)
                found = None if pair is None else ("CrossEntropyLoss", pair)
            else:
                found = None
            if found is not None:
                return found
    return None


def _binary(one: Half, other: Half) -> tuple[str, Pair] | None:
    """Returns a cross entropy of two classes: targets times one logarithm, and what they lack times the other."""
    if one.name != other.name or one.values.shape != other.values.shape or not one.values.size:
        return None
    targets, rest = one.weights, other.weights
    assert targets is not None
    assert rest is not None
    if not (np.abs(targets + rest - 1) <= 1e-6).all() or targets.min() < 0 or rest.min() < 0:
        return None
    given = one.values.astype(np.float32)
    if one.name == "LogSigmoid":
        if not np.array_equal(one.values, -other.values):
            return None
        kind, terms = (
            "BCEWithLogitsLoss",
            np.maximum(given, 0) - given * targets + np.log1p(np.exp(-abs(given))),
        )
    else:
        if not (np.abs(one.values + other.values - 1) <= _SAME).all():
            return None
        given = np.clip(given, 0, 1)
        logs = np.log(np.maximum(one.values, 1e-38)), np.log(np.maximum(other.values, 1e-38))
        kind, terms = "BCELoss", -(targets * logs[0] + rest * logs[1])
    rows = rows_that_fit(given.shape, given.nbytes)
    if not given.ndim or not rows:
        return None
    kept = np.ascontiguousarray(targets[:rows], np.float32)
    value = float(terms.mean(dtype=np.float64))
    return kind, Pair(torch.float32, given.shape, given[:rows], torch.float32, given.shape, kept, value)


def logs_of(node: Any) -> tuple[Any, tuple[int, ...], Array] | None:
    """Returns log-probabilities of classes along the last axis: their tensor if there is one, shape and values."""
    node = past(node)
    name = operation_of(node)
    if name == "LogSoftmax":
        scores = node._saved_result
        if axis_of(node._saved_dim, scores.dim()) != scores.dim() - 1 or not is_readable(scores):
            return None
        values = array_of(scores) if scores.numel() <= _ELEMENTS else None
        return None if values is None else (scores, tuple(scores.shape), values)
    if name != "Log" or node._saved_self.numel() > _ELEMENTS:
        return None
    return _logs_of_probabilities(array_of(node._saved_self))


def _logs_of_probabilities(values: Array | None) -> tuple[Any, tuple[int, ...], Array] | None:
    if values is None or values.ndim < 2 or values.shape[-1] < 2 or not values.size:
        return None
    sums = values.sum(axis=-1, dtype=np.float64)
    if values.min() < 0 or not (np.abs(sums - 1) <= _SUM).all():
        return None
    return None, values.shape, np.log(np.maximum(values, 1e-38)).astype(np.float32)


def _probabilities(node: Any) -> Array | None:
    """Returns what a softmax has given, also one that is written as a quotient."""
    name = operation_of(node)
    if name == "Softmax":
        return array_of(node._saved_result) if node._saved_result.numel() <= _ELEMENTS else None
    if name == "Div" and all(child is not None for child, _ in node.next_functions):
        tensors = node._saved_self, node._saved_other
        top, total = (array_of(one) if one.numel() <= _ELEMENTS else None for one in tensors)
        return None if top is None or total is None else top / total
    return None


def _past_epsilon(node: Any) -> Any:
    """Returns the node behind a number that is added, or a limit, that keeps a logarithm finite."""
    name = operation_of(node)
    if name in ("Clamp", "ClampMin") or (name == "Add" and node.next_functions[1][0] is None):
        return past(node.next_functions[0][0])
    return node


def _classes(node: Any, name: str, shape: tuple[int, ...]) -> Array | None:
    """Returns the classes that an index chooses, one of each row of the given shape."""
    if name == "Gather":
        index = node._saved_index
        if axis_of(node._saved_dim, index.dim()) != index.dim() - 1 or index.shape[-1] != 1:
            return None
        classes = read(index)
        classes = None if classes is None else classes[..., 0]
    else:
        indices = [read(index) for index in node._saved_indices]
        rows, classes = indices if len(indices) == 2 else (None, None)
        if rows is None or rows.ndim != 1 or not np.array_equal(rows, np.arange(len(rows))):
            return None
    if classes is None or not classes.size or classes.shape != shape[:-1]:
        return None
    return None if classes.min() < 0 or classes.max() >= shape[-1] else classes.astype(np.int64)


def pair_of(
    tensor: Any, shape: tuple[int, ...], scores: Array, classes: Array | None, normalised: bool = True
) -> Pair | None:
    """Returns scores and classes, and the mean of the cross entropy of those that count: ids below 0 do not."""
    if classes is None or not (classes >= 0).any():
        return None
    values = scores.astype(np.float64) if not normalised else scores
    if not normalised:
        top = values.max(axis=-1, keepdims=True)
        values = values - top - np.log(np.exp(values - top).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(values, np.maximum(classes, 0)[..., None], -1)[..., 0]
    value = -float(chosen[classes >= 0].mean(dtype=np.float64))
    dtype = torch.float32 if tensor is None else tensor.dtype
    size = scores.size * 4 if tensor is None else tensor.nbytes
    rows = rows_that_fit(shape, size)
    if not rows:
        return None
    words = scores[:rows].astype(np.float32) if tensor is None else copy_of_rows(tensor, rows)
    if words is None:
        return None
    ids = classes[
        : max(rows, WHOLE_BYTES // 8 // max(classes[0].size, 1))
    ]  # whole, as those of torch's losses
    return Pair(dtype, shape, words, torch.int64, classes.shape, ids, value)
