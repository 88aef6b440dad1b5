"""Finds a loss that depends on one row of what a model gives for a batch, where no row knows the others.

A bounded walk before the graph is freed. Nothing is computed with torch, and nothing is kept.
"""

from __future__ import annotations

import math
from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._loss_edges import Edge, inner_of, shape_of
from luff.torch.evidence._loss_terms import axis_of

__all__ = ["row_that_counts"]

_NODES = 1024  # that are followed from a root
_FEWEST = 4  # rows of a batch
_LEAF = "torch::autograd::AccumulateGrad"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keep rows apart, whatever else they do, if the result has as many.
_ROW_BY_ROW = _names(
    """
    Abs Alias AvgPool2D AdaptiveAvgPool2D BinaryCrossEntropy BinaryCrossEntropyWithLogits Celu Clamp ClampMin Clone
    Convolution Cos Elu Exp Expm1 Gelu Hardsigmoid Hardswish HuberLoss LeakyRelu Log Log1P LogSigmoid
    MaxPool2DWithIndices Mish MseLoss NativeBatchNorm CudnnBatchNorm NativeDropout NativeGroupNorm NativeLayerNorm Neg
    NllLoss NllLoss2D Pow PreluKernel Reciprocal Relu ReshapeAlias Rsqrt Rsub Selu Sigmoid Silu Sin SmoothL1Loss
    Softplus Sqrt Squeeze Tanh ToCopy Unsqueeze UnsafeView UpsampleBilinear2D UpsampleNearest2D View
    """
)
_PAIRS = _names("Add Sub Mul Div Maximum Minimum")
# Along axes that they tell.
_ALONG = _names(
    "Amax Amin Cat Gather Glu LinalgVectorNorm LogSoftmax Logsumexp Mean Select Slice Softmax Split Stack Sum"
)
_TAKE_ONE = _names("Select Gather Index Squeeze Slice")
_HAVE_TARGETS = _names("MseLoss SmoothL1Loss HuberLoss BinaryCrossEntropy BinaryCrossEntropyWithLogits")
_CLASSES = _names("NllLoss NllLoss2D")
_ERRORS = _names("Abs Gather LinalgVectorNorm Mean Neg Pow Sum") | _HAVE_TARGETS | _CLASSES
_VIEWS = _names("Alias Clone ReshapeAlias Squeeze ToCopy Unsqueeze UnsafeView View")
_OF_WEIGHTS = _names("T Transpose Permute View Clone ToCopy Expand Mul Add Div Sub Unsqueeze Squeeze")


def row_that_counts(root: Edge) -> int | None:
    """Returns the number of the only row that a loss depends on, -1 for the last one; None if there is none, or it is
    not sure that the rows are samples: all that gives them must be known to work on each row alone.

    One number of a row says nothing unless its target is one of several, too: the value of the first state of a few,
    whose last one gives the target.
    """
    cuts, seen, waiting = set[tuple[Edge, int]](), {root}, [root]
    taken = set[Edge]()  # of which one number is taken
    numbers, with_targets = True, False
    for edge in waiting:  # grows during the loop
        if len(waiting) > _NODES or edge[0].name() == _LEAF:
            return None  # a parameter that is reached by another way, too
        cut = _cut(edge)
        if cut is not None:
            cuts.add(cut)
            numbers &= (_count(edge) == 1 or edge in taken) and not _is_error(cut[0])
            continue
        with_targets |= _has_targets(edge[0])
        for one in inner_of(edge[0]):
            if operation_of(edge[0]) in _TAKE_ONE and _count(edge) == 1:
                taken.add(one)
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    rows = {shape_of(edge)[0] for edge, _ in cuts}
    places = {place for _, place in cuts}
    if len(rows) != 1 or len(places) != 1 or (numbers and not with_targets):
        return None
    (count,), (place,) = rows, places
    if not _are_row_wise([edge for edge, _ in cuts], count):
        return None
    return -1 if place == count - 1 else place


def _cut(edge: Edge) -> tuple[Edge, int] | None:
    """Returns what a node takes one row of, and which one; None if it does something else."""
    node, at = edge
    name = operation_of(node)
    if name not in ("Select", "Slice", "Unbind", "Split"):
        return None
    inner = node.next_functions[0]
    if inner[0] is None or inner[0].name() == _LEAF:
        return None
    shape = shape_of(inner)
    if not shape or shape[0] < _FEWEST or axis_of(node._saved_dim, len(shape)) != 0:
        return None
    if name == "Unbind":
        return inner, at
    if name == "Select":
        return inner, axis_of(node._saved_index, shape[0])
    if shape_of(edge)[0] != 1:
        return None
    return inner, at if name == "Split" else axis_of(node._saved_start or 0, shape[0])


def _count(edge: Edge) -> int:
    return math.prod(shape_of(edge))


def _is_error(edge: Edge) -> bool:
    """Whether rows are compared with something before one of them is taken."""
    node = edge[0]
    for _ in range(8):
        inner = inner_of(node)
        if operation_of(node) not in _VIEWS or not inner:
            break
        node = inner[0][0]
    return operation_of(node) in _ERRORS


def _has_targets(node: Any) -> bool:
    """Whether a loss names a class, or has a target that was taken out of several."""
    name = operation_of(node)
    if name not in _HAVE_TARGETS:
        return name in _CLASSES
    target = node._saved_target
    return bool(target.untyped_storage().nbytes() > target.numel() * target.element_size())


def _are_row_wise(edges: list[Edge], count: int) -> bool:
    """Whether each of these has `count` rows, made of one row each and of weights."""
    seen = {edge[0] for edge in edges}
    waiting = list(edges)
    for edge in waiting:  # grows during the loop
        if len(waiting) > _NODES:
            return False
        rows = _rows_of(edge, count)
        if rows is None:
            return False
        for one in rows:
            if one[0] not in seen:
                seen.add(one[0])
                waiting.append(one)
    return True


def _rows_of(edge: Edge, count: int) -> list[Edge] | None:
    """Returns the edges through which a node gets rows; None if it may mix them."""
    node, shape = edge[0], shape_of(edge) if edge[0].name() != _LEAF else ()
    if not shape or shape[0] != count:
        return None
    name, following = operation_of(node), node.next_functions
    if name in ("Addmm", "Mm"):
        first, second = following[-2:]
        weights = [second, *following[:-2]]
        given = node._saved_mat1 if name == "Addmm" else node._saved_self
        plain = all(one[0] is None or _is_of_weights(one) for one in weights)
        return _known(first, given, count) if plain else None
    if name == "Embedding":
        return [] if _is_of_weights(following[0]) and node._saved_indices.shape[0] == count else None
    inner = [one for one in following if one[0] is not None and not _is_of_weights(one)]
    if name in ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeLayerNorm", "NativeGroupNorm"):
        if any(one in inner for one in following[1:]):
            return None
        if name == "NativeLayerNorm" and len(node._saved_normalized_shape) >= len(shape):
            return None
    elif name in _PAIRS:
        if any(len(shape_of(one)) != len(shape) for one in inner):
            return None
    elif name in _ALONG:
        axes = node._saved_dim
        rank = len(shape_of(inner[0])) if inner else 0
        axes = axes if isinstance(axes, tuple | list) else [axes]
        if not rank or not axes or any(axis_of(int(axis), rank) == 0 for axis in axes):
            return None
    elif name not in _ROW_BY_ROW:
        return None
    return inner


def _known(first: Edge, given: Any, count: int) -> list[Edge] | None:
    """Returns where the rows of a product come from: nowhere, if they are given."""
    if first[0] is not None:
        return [first]
    return [] if given is not None and given.dim() == 2 and given.shape[0] == count else None


def _is_of_weights(edge: Edge) -> bool:
    """Whether it is a parameter, or made of parameters only."""
    waiting = [edge]
    for count, (node, _) in enumerate(waiting):  # grows during the loop
        if node.name() == _LEAF:
            continue
        inner = inner_of(node)
        if count > 16 or operation_of(node) not in _OF_WEIGHTS or not inner:
            return False
        waiting.extend(inner)
    return True
