"""Reads values that the graph of a step has saved: attention weights, and codes that a model samples.

A bounded walk before the backward pass frees the graph, in the first steps and then rarely. Tensors are read as
memory, a few rows of each. Nothing is computed with torch, and nothing is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import Array, array_of
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._exchanged_axes import ExchangedAxes
from luff.torch.evidence._first_axis import FirstAxisSoftmax
from luff.torch.evidence._fused import Fused
from luff.torch.evidence._linear_layers import LinearLayers
from luff.torch.evidence._norms_of_one import NormsOfOne
from luff.torch.evidence._shared_norms import SharedNorms
from luff.torch.evidence._single_softmax import SingleSoftmax

__all__ = ["GraphValues", "attention_of", "code_of", "is_noise", "multiplies_values", "users_of"]

_MAX_NODES = 8192
_MAX_MAPS = 16
_MAX_CODES = 8
_SAMPLES, _HEADS, _QUERIES, _KEYS = 4, 16, 16, 4096  # of one map, at most
_FEW = 4  # with fewer keys than these there is no real choice
_ROWS = 64  # of a code
_EVERY, _UNTIL = 32, 1024  # steps between looks if there is something to see, and the last such step
# Nodes that may lie between attention weights and their product with the values.
_PASSING = frozenset(
    (
        "ExpandBackward0",
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "CloneBackward0",
        "MulBackward0",
        "NativeDropoutBackward0",
        "ToCopyBackward0",
        "TransposeBackward0",
        "PermuteBackward0",
        "UnsqueezeBackward0",
    )
)

_TURNING = frozenset(("TransposeBackward0", "PermuteBackward0", "UnsqueezeBackward0"))


class GraphValues(WaitingEvents):
    """Examines the graphs of the process's TRAIN steps, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        self._worth = False  # whether the last look has found something
        self.layers = LinearLayers()
        self.single = SingleSoftmax()
        self.of_one = NormsOfOne()
        self.of_one.waiting = self.single.waiting  # one list fewer that each step looks at
        self.first_axis = FirstAxisSoftmax()
        self.axes = ExchangedAxes()
        self.norms = SharedNorms()

    def due(self, step: int) -> bool:
        """Returns whether the step (counted from the first of the process) is examined."""
        return not step & (step - 1) or (self._worth and step % _EVERY == 0 and step <= _UNTIL)

    def backward_begins(self, roots: Iterable[Any], names: Names) -> list[Any]:
        """Called when a backward pass of a due step begins. Returns the nodes of its graph, from the roots on."""
        nodes = list(nodes_behind(nodes_of(roots), _MAX_NODES))  # keeps all alive: users are known by id
        users = users_of(nodes)
        if len(nodes) < _MAX_NODES:
            self.layers.look(nodes, users, names)
            self.single.look(nodes, names)
            self.of_one.look(nodes, users, names)
            self.first_axis.look(nodes)
            self.axes.look(nodes, users)
            self.norms.look(nodes, names)
        maps, codes, crossed = _look(nodes, users)
        self._worth = bool(maps or codes)
        if (self._worth or crossed) and not self.waiting:
            more = {"crossed": crossed} if crossed else {}
            self.waiting.append({"kind": "inside", "attention": maps, "codes": codes, **more})
        return nodes


def _look(
    nodes: list[Any], users: dict[int, list[Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    candidates = []
    for node in nodes:
        name = node.name()
        if name.startswith(("Softmax", "SafeSoftmax", "ScaledDotProduct")) or name == "AddBackward0":
            candidates.append((name, node))
    maps: list[dict[str, Any]] = []
    codes: list[dict[str, Any]] = []
    crossed = 0
    for name, node in candidates:
        try:
            if name == "AddBackward0":
                code = code_of(node, users) if len(codes) < _MAX_CODES else None
                if code is not None:
                    codes.append(code)
            elif is_crossed(name, node, users):
                crossed += 1
            elif len(maps) < _MAX_MAPS:
                found = attention_of(name, node, users)
                if found is not None:
                    maps.append(found)
        except (RuntimeError, AttributeError):  # changed in place since, or saved under another name
            continue
    return maps, codes, crossed


def users_of(nodes: Iterable[Any]) -> dict[int, list[Any]]:
    """Returns for each node, by id, up to eight of the nodes that use its result."""
    users: dict[int, list[Any]] = {}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is None:
                continue
            used = users.setdefault(id(following), [])
            if len(used) < 8:
                used.append(node)
    return users


# Attention ---------------------------------------------------------------------------------------------------------


def attention_of(name: str, node: Any, users: dict[int, list[Any]]) -> dict[str, Any] | None:
    """Measures how sharp the attention weights of a node are; None if it holds none that can be read."""
    if name.startswith("ScaledDotProduct"):
        weights = _of_query_and_key(node)
    else:
        weights = _of_softmax(node) if multiplies_values(node, users) else None
    if weights is None:
        return None
    blocks, queries, keys = weights
    top: dict[int, list[float]] = {}
    entropy: list[float] = []
    for block, places in blocks:  # (heads, rows, keys) of one sample
        alive: Any = (block > 0).any(axis=(0, 1))
        causal = all(not block[:, row, place + 1 :].any() for row, place in enumerate(places))
        for row, place in enumerate(places):
            possible = int(np.count_nonzero(alive[: place + 1] if causal else alive))
            if possible < _FEW:
                continue
            for head in range(block.shape[0]):
                line = block[head, row].astype(np.float64)
                top.setdefault(head, []).append(float(line.max()))
                line = line[line > 0]
                entropy.append(float(-(line * np.log(line)).sum()) / math.log(possible))
    if not top or not entropy:
        return None
    heads = [sum(values) / len(values) for values in top.values()]
    record = {"heads": len(heads), "queries": queries, "keys": keys, "rows": len(entropy)}
    numbers = {"least": min(heads), "top": sum(heads) / len(heads), "entropy": sum(entropy) / len(entropy)}
    if not all(math.isfinite(value) for value in numbers.values()):
        return None
    return {**record, **{key: round(value, 6) for key, value in numbers.items()}}


_Blocks = tuple[list[tuple[Array, list[int]]], int, int]


def is_crossed(name: str, node: Any, users: dict[int, list[Any]]) -> bool:
    """Whether a softmax over another axis than the last has a result that weighs the values along the last: the
    weights of a query do not sum to 1 then. The axes must be those of the product, neither turned nor normalised again.
    """
    if not name.startswith("Softmax") or node._saved_result.dim() not in (3, 4):
        return False
    rank, dim = node._saved_result.dim(), int(node._saved_dim)
    dim -= 1 << 64 if dim >= 1 << 63 else 0
    if dim in (-1, rank - 1) or min(node._saved_result.shape[dim], node._saved_result.shape[-1]) < 2:
        return False
    keys = node._saved_result.shape[-1]
    for _ in range(8):
        using = users.get(id(node), ())
        if len(using) != 1:
            return False
        name, (user,) = using[0].name(), using
        if name == "BmmBackward0":
            weights = user.next_functions[0][0] is node
            return weights and (user._saved_self is None or user._saved_self.shape[-1] == keys)
        if name not in _PASSING or name in _TURNING:
            return False
        node = user
    return False


def _places(queries: int) -> list[int]:
    """Returns the queries to read: of the later half, so that a causal mask leaves them a choice."""
    first = queries // 2
    step = max((queries - first) // _QUERIES, 1)
    return list(range(queries - 1, first - 1, -step))[:_QUERIES][::-1]


def _few(size: int, most: int) -> list[int]:
    return list(range(0, size, max(size // most, 1)))[:most]


def _of_softmax(node: Any) -> _Blocks | None:
    dim, result = int(node._saved_dim), node._saved_result
    shape = tuple(result.shape)
    dim -= 1 << 64 if dim >= 1 << 63 else 0
    if len(shape) not in (3, 4) or dim not in (-1, len(shape) - 1) or not _FEW <= shape[-1] <= _KEYS:
        return None
    array = array_of(result)
    if array is None or not array.size:
        return None
    places = _places(shape[-2])
    if len(shape) == 3:  # heads may be merged with samples: each entry is taken for a head
        return [(array[_few(shape[0], _HEADS)][:, places], places)], shape[-2], shape[-1]
    heads = _few(shape[1], _HEADS)
    blocks = [(array[sample][heads][:, places], places) for sample in _few(shape[0], _SAMPLES)]
    return blocks, shape[-2], shape[-1]


def _of_query_and_key(node: Any) -> _Blocks | None:
    fused = Fused.of(node)
    if fused is None or not _FEW <= fused.shape[3] <= _KEYS or node._saved_key.shape[1] != fused.shape[1]:
        return None
    samples, heads, queries, keys = fused.shape
    places, blocks = _places(queries), []
    for sample in _few(samples, 2):
        block = np.stack([fused.weights(sample, head, places) for head in _few(heads, _HEADS // 2)])
        if not block.any(axis=-1).all():  # a query that may look at nothing
            return None
        blocks.append((block, places))
    return blocks, queries, keys


def multiplies_values(node: Any, users: dict[int, list[Any]]) -> bool:
    """Whether the result is used, through views and dropout, in a matrix product."""
    reached = [node]
    for position in range(32):
        if position >= len(reached):
            return False
        for user in users.get(id(reached[position]), ()):
            name = user.name()
            if name in ("BmmBackward0", "MmBackward0", "BaddbmmBackward0"):
                return True
            if name in _PASSING and len(reached) < 32:
                reached.append(user)
    return False


# Codes that a model samples ---------------------------------------------------------------------------------------


def code_of(node: Any, users: dict[int, list[Any]]) -> dict[str, Any] | None:
    """Measures how much the code ``mean + std * noise`` depends on the input: its
    divergence from N(0, 1), in nats.
    """
    parts = [following for following, _ in node.next_functions]
    if len(parts) != 2 or None in parts:
        return None
    for noisy, mean in ((parts[0], parts[1]), (parts[1], parts[0])):
        if noisy.name() != "MulBackward0":
            continue
        first, second = (following for following, _ in noisy.next_functions)
        if (first is None) == (second is None):
            continue
        noise = array_of(noisy._saved_other if second is None else noisy._saved_self)
        std = _std_of(first if second is None else second)
        if std is None or noise is None or std.shape != noise.shape or not is_noise(noise):
            continue
        centre = _mean_of(node, mean, users, std, noise)
        if centre is None or centre.shape != std.shape:
            return None
        rows = std.reshape(std.shape[0], -1)[:_ROWS].astype(np.float64)
        middle = centre.reshape(std.shape[0], -1)[:_ROWS].astype(np.float64)
        with np.errstate(all="ignore"):
            nats = 0.5 * (middle**2 + rows**2 - 1) - np.log(rows)
        if not np.isfinite(nats).all():
            return None
        return {
            "rows": len(rows),
            "width": int(rows.shape[1]),
            "nats": round(float(nats.sum(axis=1).mean()), 6),
            "used": int(np.count_nonzero(nats.mean(axis=0) > 0.01)),
        }
    return None


def is_noise(noise: Array) -> bool:
    """Whether the values look like samples of N(0, 1)."""
    values = noise.reshape(-1)[:4096]
    if noise.ndim < 2 or values.size < 32:
        return False
    error = 5 / math.sqrt(values.size)
    return bool(abs(float(values.mean())) < error and abs(float(values.std()) - 1) < error)


def _std_of(node: Any) -> Array | None:
    """Returns the output of a node that makes positive numbers."""
    name = node.name()
    if name in ("ExpBackward0", "SqrtBackward0"):
        return array_of(node._saved_result)
    if name == "SoftplusBackward0" and node._saved_beta == 1:
        given = array_of(node._saved_self)
        if given is not None:
            softened: Array = np.logaddexp(0, given)
            return softened
    return None


def _mean_of(drawn: Any, mean: Any, users: dict[int, list[Any]], std: Array, noise: Array) -> Array | None:
    """Returns the mean, saved by a square (of the divergence in the loss), or derived from the code a layer has
    saved.
    """
    for user in users.get(id(mean), ()):
        if user.name() == "PowBackward0" or (
            user.name() == "MulBackward0" and all(part is mean for part, _ in user.next_functions)
        ):
            return array_of(user._saved_self)
    reached = [drawn]
    for position in range(8):
        if position >= len(reached):
            break
        for user in users.get(id(reached[position]), ()):
            name, inputs = user.name(), [following for following, _ in user.next_functions]
            code = None
            if name == "AddmmBackward0" and inputs[1] is reached[position]:
                code = array_of(user._saved_mat1)
            elif name == "MmBackward0" and inputs[0] is reached[position]:
                code = array_of(user._saved_self)
            elif name in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"):
                reached.append(user)
            if code is not None and code.size == std.size:
                centre: Array = code.reshape(std.shape) - noise * std
                return centre
    return None
