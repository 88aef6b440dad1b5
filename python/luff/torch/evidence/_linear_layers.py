"""Finds linear layers that follow each other with nothing between them, in the graph of a backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.capture._memory import array_of
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents

__all__ = ["LinearLayers"]

_MOST = 16  # events of a run, and pairs of an event
_BETWEEN = 8  # nodes between two layers
_MASK = 1 << 16  # elements of a dropout's mask that are read
_LEAF = "torch::autograd::AccumulateGrad"
#: Operations between two layers that leave them one linear function; moves of axes would change which one.
_PASSING = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "ToCopy", "Alias")
    + ("NativeDropout", "NativeBatchNorm", "CudnnBatchNorm", "BatchNorm")
)
_TURNS = frozenset(("Transpose", "Permute", "Expand", "T"))
_ATTENTION = ("Bmm", "Baddbmm", "ScaledDotProduct")
_PRODUCTS = frozenset(("Addmm", "Mm"))
#: A graph of nothing but these and of passing ones is a linear function of its input.
_LINEAR = frozenset(
    ("Convolution", "MkldnnConvolution", "AvgPool1D", "AvgPool2D", "AdaptiveAvgPool2D", "Mean", _LEAF)
)


@dataclass(slots=True)
class _Layer:
    node: Any
    weight: Any  # parameter
    data: Any  # node of what it is applied to; None for the model's input


class LinearLayers(WaitingEvents):
    """Keeps the pairs of layers that were never seen otherwise, and tells of them whenever they change."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[str, str | None] = {}  # first layer -> second; None: its result goes elsewhere, too
        self._linear = True
        self._told: list[list[str]] = []
        self._events = 0

    def look(self, nodes: list[Any], users: dict[int, list[Any]], names: Names) -> None:
        """Called with all nodes behind the roots of a backward pass, and the users of each by id."""
        if self._events >= _MOST:
            return
        layers = _layers(nodes)
        if len(layers) < 2:
            return
        for layer in layers.values():
            first = names.parameter(layer.weight)
            if first is None or self._pairs.get(first, "") is None:
                continue
            second = _second(layer, layers, users)
            following = None if second is None else names.parameter(second.weight)
            if following == first or self._pairs.setdefault(first, following) != following:
                self._pairs[first] = None
        behind = nodes_behind([layer.node for layer in layers.values()], len(nodes))
        self._linear = self._linear and all(map(_is_linear, behind))
        pairs = sorted([first, second] for first, second in self._pairs.items() if second is not None)[:_MOST]
        told = [["linear"], *pairs] if self._linear else pairs
        if (pairs or self._told) and told != self._told:
            self._told = told
            self._events += 1
            self.waiting.append({"kind": "linear_layers", "pairs": pairs, "linear": self._linear})


def _layers(nodes: Iterable[Any]) -> dict[int, _Layer]:
    """Returns the products with the transpose of a parameter, as `torch.nn.Linear` makes them, by id of the node."""
    found = {}
    for node in nodes:
        name = operation_of(node)
        if name not in _PRODUCTS:
            continue
        following = [child for child, _ in node.next_functions]
        data, weight = following[-2:]
        if operation_of(weight) == "T" and operation_of(weight.next_functions[0][0]) == _LEAF:
            found[id(node)] = _Layer(node, weight.next_functions[0][0].variable, data)
    return found


def _second(first: _Layer, layers: dict[int, _Layer], users: dict[int, list[Any]]) -> _Layer | None:
    """Returns the layer that alone gets what another gives; None if there is none, or attention made what goes into
    the first, whose projection it is then.
    """
    if _is_of_attention(first.data):
        return None
    node = first.node
    for _ in range(_BETWEEN):
        using = users.get(id(node), ())
        if len(using) != 1:
            return None
        (user,) = using
        second = layers.get(id(user))
        if second is not None:
            return second if second.data is node else None
        if not _is_passing(user):
            return None
        node = user
    return None


def _is_passing(node: Any) -> bool:
    name = operation_of(node)
    return name in _PASSING or (name == "Mul" and _is_dropout(node))


def _is_dropout(node: Any) -> bool:
    """Whether a product has a mask of zeros and one number above 1 for its other factor."""
    following = node.next_functions
    if len(following) != 2 or following[0][0] is None or following[1][0] is not None:
        return False
    other = node._saved_other
    if getattr(other, "ndim", 0) == 0 or other.numel() > _MASK:
        return False
    mask = array_of(other)
    if mask is None or not mask.size:
        return False
    top = mask.max()
    return bool(top > 1 and ((mask == 0) | (mask == top)).all() and np.count_nonzero(mask) < mask.size)


def _is_of_attention(node: Any) -> bool:
    for _ in range(_BETWEEN):
        name = operation_of(node)
        if name.startswith(_ATTENTION):
            return True
        if node is None or not (name in _TURNS or _is_passing(node)):
            return False
        node = node.next_functions[0][0]
    return False


def _is_linear(node: Any) -> bool:
    name = operation_of(node)
    return name in _PRODUCTS or name in _LINEAR or name in _TURNS or _is_passing(node)
