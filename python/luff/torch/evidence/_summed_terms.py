"""Finds a term that was summed over the samples of a batch and is then added to each of them: its weight grows with the
batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.evidence._loss_edges import Edge, inner_of, past_edge, scaled, shape_of

__all__ = ["is_summed_and_spread"]

_NODES = 64  # that are followed from a root
_WALK = 1024  # nodes behind a term
_MEAN = 1.001  # times as many samples: the weight of each in a mean, or less
_LEAF = "torch::autograd::AccumulateGrad"


def is_summed_and_spread(root: Edge) -> bool:
    """Returns whether a loss is the mean (or sum) over samples of a value of each plus one number, which is a sum over
    the same samples: something was computed of both.
    """
    queue = [(root, False)] if root[0] is not None else []
    for count, (edge, spread) in enumerate(queue):  # grows during the loop
        if count >= _NODES:
            return False
        edge, _ = scaled(edge)
        name, inner = operation_of(edge[0]), inner_of(edge[0])
        if name in ("Mean", "Sum"):
            queue.append((inner[0], True))
        elif name in ("Add", "Sub", "Rsub"):
            queue.extend((one, spread) for one in inner)
            if spread and len(inner) == 2 and _spreads(edge, inner):
                return True
    return False


def _spreads(edge: Edge, inner: list[Edge]) -> bool:
    shape = shape_of(edge)
    if not shape or shape[0] < 2:
        return False
    for number, values in (inner, inner[::-1]):
        if math.prod(shape_of(number)) != 1 or shape_of(values) != shape:
            continue
        if any(_shared(one, values, shape[0]) for one in _sums(number, shape[0])):
            return True
    return False


def _sums(edge: Edge, samples: int) -> Iterable[Edge]:
    """Yields what a number sums up over as many samples, at once or one after the other, as Python's `sum` does, unless
    the sum is divided by their number: it is a mean then.
    """
    queue, taken = [(edge, 1.0)], Counter[Edge]()
    for count, (one, weight) in enumerate(queue):  # grows during the loop
        if count >= _NODES + 4 * samples or count >= _WALK:
            return
        one, factor = scaled(one)
        weight *= factor
        if abs(weight) * samples <= _MEAN:
            continue
        name, inner = operation_of(one[0]), inner_of(one[0])
        if name in ("Unbind", "Select"):
            source = past_edge(inner[0])
            taken[source] += 1
            if taken[source] == samples and shape_of(source)[:1] == (samples,):
                yield source
        if name == "Sum" and math.prod(shape_of(one)) == 1:
            summed = past_edge(inner[0])
            sizes = shape_of(summed)
            if sizes and sizes[0] == samples:
                yield summed
        elif name in ("Add", "Sub", "Rsub"):
            queue.extend((following, weight) for following in inner)


def _shared(one: Edge, other: Edge, samples: int) -> bool:
    """Returns whether two terms have an operation in common that gives as many samples: weights have none."""
    near = {id(node): node for node in nodes_behind([one[0]], _WALK) if _has(node, samples)}
    return any(id(node) in near for node in nodes_behind([other[0]], _WALK))


def _has(node: Any, samples: int) -> bool:
    if node.name() == _LEAF:
        return False
    shape = node._input_metadata[0].shape
    return len(shape) > 0 and int(shape[0]) == samples
