"""Finds weights of samples that are multiplied by the mean of the samples' losses, in the place of the losses: whatever
they are, each sample then counts like any other.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

import math
from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import DEPTH, MOVES, constant_of

__all__ = ["weights_a_mean"]

_NODES = 64  # that are followed from a root
_ELEMENTWISE = frozenset(
    ("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
)
_CLASSES = frozenset(("NllLoss", "NllLoss2d", "NllLoss2D"))
_NONE = 0  # value of torch's reduction


def weights_a_mean(node: Any) -> bool | None:
    """Returns whether a root sums up products of one mean over samples and as many constants; None if it does and the
    constants are all the same, as of a batch without a rare class. Called for graphs whose saved tensors can be read.
    """
    queue = [] if node is None else [(node, False)]
    for count, (one, summed) in enumerate(queue):  # grows during the loop
        if count >= _NODES:
            return False
        name, following = operation_of(one), [child for child, _ in one.next_functions]
        if name == "Mul" and summed and (weights := _weights(one)) is not None:
            return True if bool((weights != weights.flat[0]).any()) else None
        if name in ("Mean", "Sum"):
            queue.append((following[0], True))
        elif name in MOVES or name in ("Neg", "Rsub", "Add", "Sub"):
            queue.extend((child, summed) for child in following if child is not None)
        elif name in ("Mul", "Div") and constant_factor(one, name == "Div") is not None:
            queue.append((following[0], summed))
    return False


def _weights(product: Any) -> Array | None:
    """Returns the weights if a product multiplies a mean over samples by one for each of them."""
    samples = _samples_of(next((child for child, _ in product.next_functions if child is not None), None))
    if not samples:
        return None
    weights, _ = constant_of(product)
    return weights if weights is not None and weights.size in samples else None


def _samples_of(node: Any) -> tuple[int, ...]:
    """Returns of how many values a node is the mean, more than one: values, or rows of them. Nothing for no mean."""
    for _ in range(DEPTH):
        name = operation_of(node)
        if name in ("Mul", "Div") and constant_factor(node, name == "Div") is None:
            return ()
        if name not in MOVES and name not in ("Neg", "Mul", "Div", "Add"):
            break
        if name == "Add" and math.prod(node._input_metadata[0].shape) != 1:
            return ()  # with something that has a value for each sample
        # Of a sum the first part tells: that of smoothed labels, say.
        node = next((child for child, _ in node.next_functions if child is not None), None)
    if node is None:
        return ()
    if node.name() == "MeanBackward0":
        counts = [int(node._saved_self_sym_numel)]
    elif name in _ELEMENTWISE and node._saved_reduction != _NONE:
        values = node._saved_self
        counts = [int(values.numel()), int(values.shape[0]) if values.dim() else 1]
    elif name in _CLASSES and node._saved_reduction != _NONE:
        target = node._saved_target
        counts = [int(target.numel()), int(target.shape[0]) if target.dim() else 1]
    else:
        return ()
    return tuple(count for count in counts if count > 1)
