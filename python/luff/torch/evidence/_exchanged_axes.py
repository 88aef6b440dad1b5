"""Finds reshapes that stand in the place of a transposition: two axes behind them have each other's sizes.

A reshape keeps the order of the values, so behind it a row of features holds values of several places. The layer that
made the values says which axis its features are, and the one that gets them which axis it takes for them: only where
both name the same size, along another axis, nothing else can be meant. Of attention, heads are split off, or merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_rows import VIEWS

__all__ = ["ExchangedAxes", "exchanged"]

_LOOKS = 2  # graphs in a row that must show it
_BEHIND, _AHEAD = 16, 16  # nodes between a layer and a reshape
_LEAF = "torch::autograd::AccumulateGrad"
_PRODUCTS = ("Bmm", "Baddbmm", "ScaledDotProduct")
_LINEAR = frozenset(("Addmm", "Mm"))
_CONVOLUTIONS = ("Convolution", "MkldnnConvolution", "CudnnConvolution")
_POOLS = ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "MkldnnMaxPool")
_NORMS = frozenset(("NativeBatchNorm", "CudnnBatchNorm", "BatchNorm"))
#: Operations on single values, or along no axis.
_POINTWISE = frozenset(
    ("Relu", "LeakyRelu", "Gelu", "Silu", "Elu", "Tanh", "Sigmoid", "Softplus", "Hardswish", "Mish")
    + ("NativeDropout", "Mul", "Div", "Add", "Sub", "Neg", "Clone", "ToCopy", "Alias")
)
_TURNS = frozenset(("Transpose", "Permute", "Expand"))


class ExchangedAxes(WaitingEvents):
    """Tells of the first one that two graphs in a row have, once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, int] = {}  # kind -> graphs in a row
        self._told = False

    def look(self, nodes: list[Any], users: dict[int, list[Any]]) -> None:
        """Called with all nodes behind the roots of a backward pass, and the users of each by id."""
        if self._told:
            return
        found: dict[str, tuple[list[int], list[int]]] = {}
        for node in reversed(nodes):  # of a forward pass the first ones first
            if operation_of(node) in VIEWS:
                try:
                    one = exchanged(node, users)
                except (RuntimeError, AttributeError, IndexError):  # saved under another name, or a number
                    continue
                if one is not None:
                    found.setdefault(one[0], one[1:])
        self._seen = {kind: self._seen.get(kind, 0) + 1 for kind in found}
        for kind, (before, behind) in found.items():
            if self._seen[kind] >= _LOOKS and not self._told:
                self._told = True
                self.waiting.append(
                    {"kind": "exchanged_axes", "of": kind, "before": before, "behind": behind}
                )


def exchanged(node: Any, users: dict[int, list[Any]]) -> tuple[str, list[int], list[int]] | None:
    """Returns what axes a reshape's node exchanges (`heads`, `merged`, `features`), and the shapes before and behind
    it; None if it exchanges none.
    """
    before = [int(size) for size in node._saved_self_sym_sizes]
    behind = _shape_of(node)
    if not 3 <= len(before) <= 5 or not 3 <= len(behind) <= 5 or math.prod(before) != math.prod(behind):
        return None
    if _splits_heads(before, behind) and _has_features_last(_before_split(node, before)):
        if any(operation_of(user).startswith(_PRODUCTS) for user in _ahead(node, users)):
            return "heads", before, behind
    elif _merges_heads(before, behind) and _is_attention(node.next_functions[0][0]):
        return "merged", before, behind
    elif before[0] == behind[0] and _exchanges_features(node, before, behind, users):
        return "features", before, behind
    return None


def _shape_of(node: Any) -> list[int]:
    return [int(size) for size in node._input_metadata[0].shape]


# Heads of attention ---------------------------------------------------------------------------------------------------


def _splits_heads(before: list[int], behind: list[int]) -> bool:
    """Returns whether (B, L, E), or (B, L, H, D), becomes (B, H, L, D), or (B * H, L, D)."""
    batch, length, *rest = before
    if len(before) not in (3, 4) or length < 2:
        return False
    if len(behind) == 4:
        heads, depth = behind[1], behind[3]
        fits = behind[0] == batch and behind[2] == length
    else:
        heads, depth = behind[0] // batch if batch else 0, behind[2]
        fits = behind[0] == batch * heads and behind[1] == length
    split = [heads, depth] if len(before) == 4 else [heads * depth]
    return fits and heads > 1 and depth > 1 and heads != length and rest == split


def _before_split(node: Any, before: list[int]) -> Any:
    """Returns the node of what has all features along its last axis."""
    made = node.next_functions[0][0]
    if len(before) == 3:
        return made
    if operation_of(made) not in VIEWS:
        return None
    sizes = [int(size) for size in made._saved_self_sym_sizes]
    return made.next_functions[0][0] if sizes == [*before[:2], before[2] * before[3]] else None


def _merges_heads(before: list[int], behind: list[int]) -> bool:
    """Returns whether (B, H, L, D) becomes (B, L, H * D), or (B, L, H, D)."""
    if len(before) != 4:
        return False
    batch, heads, length, depth = before
    if min(heads, length, depth) < 2 or heads == length:
        return False
    return behind in ([batch, length, heads * depth], [batch, length, heads, depth])


def _is_attention(node: Any) -> bool:
    """Returns whether a node is a product of weights that a softmax made and values, without another order of axes."""
    for _ in range(_BEHIND):
        name = operation_of(node)
        if name.startswith("ScaledDotProduct"):
            return True
        if name == "Bmm":
            return _is_softmax(node.next_functions[0][0])
        if name not in VIEWS and name not in ("Clone", "NativeDropout"):
            return False
        node = node.next_functions[0][0]
    return False


def _is_softmax(node: Any) -> bool:
    for _ in range(_BEHIND):
        name = operation_of(node)
        if name in ("Softmax", "SafeSoftmax"):
            return True
        if name not in VIEWS and name not in ("Expand", "NativeDropout", "Mul", "ToCopy", "Clone"):
            return False
        node = node.next_functions[0][0]
    return False


# Features -------------------------------------------------------------------------------------------------------------


def _exchanges_features(node: Any, before: list[int], behind: list[int], users: dict[int, list[Any]]) -> bool:
    made = node.next_functions[0][0]
    # (B, ..., C) becomes (B, C, ...), for a convolution; or the other way round, for what takes the last axis.
    last, channels = before[-1], before[1]
    same = len(before) != len(behind)
    if _are_exchanged(last, before[1:-1], behind[1], behind[2:]) and (same or before[1:-1] == behind[2:]):
        if _has_features_last(made) and _is_convolved(node, behind, users):
            return True
    if _are_exchanged(channels, before[2:], behind[-1], behind[1:-1]) and (
        same or before[2:] == behind[1:-1]
    ):
        return _has_channels(made, before) and _is_multiplied(node, behind, users)
    return False


def _are_exchanged(width: int, places: list[int], width_behind: int, places_behind: list[int]) -> bool:
    count = math.prod(places)
    return width == width_behind != count == math.prod(places_behind) and min(width, count) > 1


def _has_features_last(node: Any) -> bool:
    """Returns whether a linear layer, an embedding or a normalisation made a node's values, and nothing since has moved
    them.
    """
    for _ in range(_BEHIND):
        name = operation_of(node)
        if name in ("Embedding", "NativeLayerNorm") or name in _LINEAR:
            return True
        if name in VIEWS:  # rows, which a linear layer has made of all axes but the last
            if not _keeps_last(node) or operation_of(node.next_functions[0][0]) not in _LINEAR:
                return False
        elif name not in _POINTWISE:
            return False
        node = _first(node)
    return False


def _has_channels(node: Any, shape: list[int]) -> bool:
    """Returns whether a convolution made a node's values, of whose result the axes are still the same."""
    for _ in range(_BEHIND):
        name = operation_of(node)
        if name in _CONVOLUTIONS:
            made = _shape_of(node)
            return len(made) == len(shape) and made[1] == shape[1]
        if name not in _POINTWISE and name not in _NORMS and not name.startswith(_POOLS):
            return False
        node = _first(node)
    return False


def _first(node: Any) -> Any:
    """Returns the node of the first argument that is no parameter."""
    behind = (child for child, _ in node.next_functions if child is not None)
    return next((child for child in behind if operation_of(child) != _LEAF), None)


def _keeps_last(node: Any) -> bool:
    return bool(int(node._saved_self_sym_sizes[-1]) == _shape_of(node)[-1])


def _is_convolved(node: Any, shape: list[int], users: dict[int, list[Any]]) -> bool:
    """Returns whether a convolution gets a reshape's result, whose axis 1 are channels for it."""
    reached, position = [node], 0
    while position < len(reached) and position < _AHEAD:
        one, position = reached[position], position + 1
        for user in users.get(id(one), ()):
            name = operation_of(user)
            if name in _CONVOLUTIONS and user.next_functions[0][0] is one:
                return len(_shape_of(user)) == len(shape)
            if name in _POINTWISE or name in _NORMS:
                reached.append(user)
    return False


def _is_multiplied(node: Any, shape: list[int], users: dict[int, list[Any]]) -> bool:
    """Returns whether a linear layer, a recurrent one or a normalisation gets a reshape's result, whose last axis are
    features for it.
    """
    reached, position = [node], 0
    while position < len(reached) and position < _AHEAD:
        one, position = reached[position], position + 1
        for user in users.get(id(one), ()):
            name = operation_of(user)
            first = user.next_functions[0][0] is one
            if (name == "Mm" and first) or (name == "Addmm" and user.next_functions[1][0] is one):
                return True
            if first and (name == "NativeLayerNorm" or name == "MkldnnRnnLayer"):
                return True
            same = name in VIEWS and _shape_of(user) == [math.prod(shape[:-1]), shape[-1]]
            turned = name == "Transpose" and _shape_of(user)[-1:] == shape[-1:]
            if same or turned or name in _POINTWISE:
                reached.append(user)
    return False


def _ahead(node: Any, users: dict[int, list[Any]]) -> Iterator[Any]:
    """Yields what gets a node's result, through moves, factors and sums of single values."""
    reached, position = [node], 0
    while position < len(reached) and position < _AHEAD:
        one, position = reached[position], position + 1
        for user in users.get(id(one), ()):
            name = operation_of(user)
            yield user
            if name in VIEWS or name in _TURNS or name in _POINTWISE:
                reached.append(user)
