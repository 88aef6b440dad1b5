"""Finds linear layers that follow each other with nothing between them, or a softmax in the place of each activation,
in the graph of a backward pass.
"""

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
_PAIR = 2  # layers
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
        self._softmaxes: dict[str, str | None] = {}  # first layer -> second, with a softmax between
        self._chain: list[str] = []

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
        self._look_for_softmaxes(layers, users, names)
        behind = nodes_behind([layer.node for layer in layers.values()], len(nodes))
        self._linear = self._linear and all(map(_is_linear, behind))
        pairs = sorted([first, second] for first, second in self._pairs.items() if second is not None)[:_MOST]
        told = [["linear"], *pairs] if self._linear else pairs
        if (pairs or self._told) and told != self._told:
            self._told = told
            self._events += 1
            self.waiting.append({"kind": "linear_layers", "pairs": pairs, "linear": self._linear})

    def _look_for_softmaxes(
        self, layers: dict[int, _Layer], users: dict[int, list[Any]], names: Names
    ) -> None:
        """Tells of the longest chain of different layers with a softmax between each two, if there are two of these."""
        for layer in layers.values():
            first = names.parameter(layer.weight)
            if first is None or self._softmaxes.get(first, "") is None:
                continue
            second = _second(layer, layers, users, softmaxes=1)
            following = None if second is None else names.parameter(second.weight)
            if self._softmaxes.setdefault(first, following) != following:
                self._softmaxes[first] = None
        chain = max((_chain(first, self._softmaxes) for first in self._softmaxes), key=len, default=[])
        told = chain[:_MOST] if len(chain) > _PAIR else []
        if told != self._chain:
            self._chain = told
            self._events += 1
            self.waiting.append({"kind": "softmax_layers", "layers": told})


def _chain(first: str, followed: dict[str, str | None]) -> list[str]:
    chain = [first]
    while (following := followed.get(chain[-1])) is not None:
        if following in chain:
            return []  # a recurrence
        chain.append(following)
    return chain


def _layers(nodes: Iterable[Any]) -> dict[int, _Layer]:
    """Returns the products with the transpose of a parameter, as `torch.nn.Linear` makes them, by id of the node."""
    found = {}
    for node in nodes:
        name = operation_of(node)
        if name not in _PRODUCTS:
            continue
        following = [child for child, _ in node.next_functions]
        data, weight = following[-2:]
        if operation_of(weight) == "T" and (leaf := _leaf(weight.next_functions[0][0])) is not None:
            found[id(node)] = _Layer(node, leaf.variable, data)
    return found


def _leaf(node: Any) -> Any:
    """Returns the node of a parameter, also of one that was cast, as under autocast."""
    if operation_of(node) == "ToCopy":
        node = node.next_functions[0][0]
    return node if operation_of(node) == _LEAF else None


def _second(
    first: _Layer, layers: dict[int, _Layer], users: dict[int, list[Any]], softmaxes: int = 0
) -> _Layer | None:
    """Returns the layer that alone gets what another gives; None if there is none, or attention made what goes into
    the first, whose projection it is then. `softmaxes`: how many softmaxes along the last axis lie between; several
    layers may get the last one.
    """
    if _is_of_attention(first.data):
        return None
    node, asked = first.node, softmaxes
    for _ in range(_BETWEEN):
        using = users.get(id(node), ())
        after = asked and not softmaxes and len(using) > 1
        heads = [head for user in using if (head := layers.get(id(user))) is not None and head.data is node]
        if after and len(heads) == len(using):
            return min(heads, key=lambda head: head.node._sequence_nr())  # that was computed first
        if len(using) != 1:
            return None
        (user,) = using
        second = layers.get(id(user))
        if second is not None:
            return second if second.data is node and not softmaxes else None
        if softmaxes and operation_of(user) == "Softmax" and _is_over_last(user):
            softmaxes -= 1
        elif not _is_passing(user):
            return None
        node = user
    return None


def _is_over_last(node: Any) -> bool:
    rank, axis = len(node._input_metadata[0].shape), int(node._saved_dim)
    return rank > 1 and axis - (1 << 64 if axis >> 63 and axis > 0 else 0) in (-1, rank - 1)


def _is_passing(node: Any) -> bool:
    name = operation_of(node)
    return name in _PASSING or (name == "Mul" and _is_dropout(node)) or (name == "Add" and _adds_bias(node))


def _adds_bias(node: Any) -> bool:
    """Whether a sum adds the bias of a layer whose input lies otherwise in memory."""
    leaves = [leaf for child, _ in node.next_functions if (leaf := _leaf(child)) is not None]
    return len(leaves) == 1 and leaves[0].variable.dim() == 1


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
