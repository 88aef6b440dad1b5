"""Layers of batch normalisation that one forward pass uses at two places, one behind the other, whose batches have
other means there: their running statistics are a mixture of both, and fit neither.

Read in the graph of a backward pass, before it is freed. Tensors are read as memory, and nothing is kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.capture._memory import address_of, array_of
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents

__all__ = ["SharedNorms"]

_NORMS = frozenset(("NativeBatchNorm", "MkldnnBatchNorm", "CudnnBatchNorm"))
_MOST_NODES = 512  # of a graph with such layers
_LAYERS = 64  # that are compared
_LEAF = "torch::autograd::AccumulateGrad"
_APART = 1.0  # deviations between the means of a channel
_RATIO = 4.0  # between its variances
_SAMPLES = 32  # of a channel: means and variances of fewer differ by chance
_MOST_EVENTS = 8


class SharedNorms(WaitingEvents):
    """Looks at graphs, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False
        self._events = 0

    def look(self, nodes: list[Any], names: Names) -> None:
        """Called with all nodes behind the roots of a backward pass."""
        if self._events >= _MOST_EVENTS:
            return
        norms = [node for node in nodes if operation_of(node) in _NORMS][:_MOST_NODES]
        found = _found(norms, names, nodes) if len(norms) > 1 else []
        if not found and not self._told:
            return
        self._told = bool(found)
        self._events += 1
        self.waiting.append({"kind": "shared_norms", "layers": found})


def _found(norms: list[Any], names: Names, nodes: list[Any]) -> list[dict[str, Any]]:
    """Returns the layers, with the share of channels that are another matter at the second place."""
    most = len(nodes)
    places: dict[int, list[Any]] = {}
    for node in norms:
        try:
            running, shape = node._saved_running_mean, node._input_metadata[0].shape
            many = math.prod(shape) >= _SAMPLES * shape[1]
            address = address_of(running) if many and running is not None and node._saved_training else 0
        except (RuntimeError, AttributeError):  # changed in place since, or saved under another name
            continue
        if address:
            places.setdefault(address, []).append(node)
    found = []
    for several in [several for several in places.values() if len(several) > 1][:_LAYERS]:
        first, second = several[0], several[-1]
        share, apart = _differ(first, second)
        if share <= 0.5:  # before the walks, which are long
            continue
        if not (_is_behind(second, first, most) or _is_behind(first, second, most)):
            continue
        weight = first.next_functions[1][0]
        name = names.parameter(weight.variable) if operation_of(weight) == _LEAF else None
        if name is not None and not _is_called_again(weight.variable, nodes, names):
            found.append(
                {"layer": name.rpartition(".")[0], "share": round(share, 4), "apart": round(apart, 4)}
            )
    return found


def _is_called_again(parameter: Any, nodes: list[Any], names: Names) -> bool:
    """Returns whether the graph uses each parameter of the model that has this one twice or more: then the loop has
    called the whole model again on what it gave, as for a cycle (there and back), and no layer has two places in it.
    """
    for model, _ in names.models():
        own = {id(one) for one in model.parameters()}
        if id(parameter) in own:
            break
    else:
        return False
    uses: dict[int, int] = {}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None and operation_of(following) == _LEAF:
                key = id(following.variable)
                uses[key] = uses.get(key, 0) + 1
    return all(count > 1 for key, count in uses.items() if key in own)


def _is_behind(node: Any, user: Any, most: int) -> bool:
    """Returns whether a node's result goes into another node."""
    return any(one is node for one in nodes_behind([user], most))


def _differ(first: Any, second: Any) -> tuple[float, float]:
    """Returns the share of channels whose mean, or variance, is another one at the second place, and how many
    deviations the means lie apart: the median over the channels.
    """
    means = [array_of(node._saved_result1) for node in (first, second)]
    inverse = [array_of(node._saved_result2) for node in (first, second)]
    if any(one is None or not one.size or not np.isfinite(one).all() for one in (*means, *inverse)):
        return 0.0, 0.0
    deviations = [1 / one.astype(np.float64).clip(1e-12) for one in inverse if one is not None]
    apart = abs(np.subtract(*(one.astype(np.float64) for one in means if one is not None)))
    apart = apart / np.minimum(*deviations).clip(1e-12)
    ratio = (np.maximum(*deviations) / np.minimum(*deviations).clip(1e-12)) ** 2
    return float(((apart > _APART) | (ratio > _RATIO)).mean()), float(np.median(apart))
