"""Finds a loss that pairs each sample with the target of every other: values of (N,) times targets of (N, 1).

A bounded walk behind the root of a backward pass, before the graph is freed. Shapes are read, and targets as memory;
nothing is computed with torch.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import MOVES, read

__all__ = ["LossPairs", "pairs_behind"]

_NODES = 64  # that are followed from a root
_BEHIND = 256  # nodes that are looked at where products were found
_ROOTS = 2  # that show it before it is told,
_SHARE = 3  # and one of so many: an adversary has a root of its own
_OTHERS = 16  # in a row that do not, before it is taken back
_SUMS = frozenset(("Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "Stack", "Cat")) | (
    MOVES - {"Select", "Slice"}
)
#: Functions of single numbers. A sum is none: the graph does not show whether what is added differs from pair to pair.
_SINGLE = frozenset(
    (
        "Abs",
        "Clamp",
        "ClampMax",
        "ClampMin",
        "Elu",
        "Exp",
        "LeakyRelu",
        "Log",
        "Log1P",
        "LogSigmoid",
        "Neg",
        "Pow",
        "Relu",
        "Rsub",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Tanh",
    )
)
_BOTH = frozenset(("Maximum", "Minimum"))
_DEPTH = 8  # such functions
_GRID = 4  # numbers at least that are evenly spaced by more than chance
_EVEN = 1e-4  # of a grid's step,
_ROUNDING = 4 * float(np.finfo(np.float32).eps)  # and of its largest number

Shape = tuple[int, ...]


class Pairs(NamedTuple):
    """Both sides of a product."""

    output: Shape  # with a gradient
    target: Shape  # without
    grid: int = 0  # a hash of the target's values if these are evenly spaced; else 0


class LossPairs(WaitingEvents):
    """Tells of a loss that multiplies each sample's value by the targets of all, whenever that changes."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False
        self._roots = self._seen = 0  # that were looked at, and that show it
        self._others = 0  # in a row that do not
        self._grid = 0  # of the root before

    def root(self, root: Any) -> None:
        """Called with the root of a backward pass, of which saved tensors can be read."""
        try:
            pairs = pairs_behind(root.grad_fn)
        except (
            RuntimeError,
            AttributeError,
            IndexError,
            TypeError,
        ):  # changed in place since, or symbolic sizes
            return
        grid, self._grid = self._grid, pairs.grid if pairs is not None else 0
        if pairs is not None and pairs.grid and pairs.grid == grid:
            pairs = None  # places where something is evaluated: they do not belong to samples
        self._roots += 1
        self._seen += pairs is not None
        self._others = self._others + 1 if pairs is None else 0
        if self._told and self._others >= _OTHERS:
            self._told, self._roots, self._seen = False, 0, 0
        elif not self._told and pairs is not None and self._seen >= max(_ROOTS, self._roots / _SHARE):
            self._told = True
        else:
            return
        output, target, _ = pairs or Pairs((), ())
        event = {"kind": "loss_pairs", "paired": self._told}
        self.waiting.append(event | {"output": list(output), "target": list(target)})


def pairs_behind(root: Any) -> Pairs | None:
    """Returns values with a gradient and those without, of which a root sums up all products.

    Every product (i, j) goes into the sum in the same way, so the sum does not change when the targets change places.
    None if no product is of that kind, or one of them goes into the root in another way, too: a grid of values, say.
    """
    queue, seen = deque([] if root is None else [root]), {root}
    found: dict[Any, Pairs] = {}
    others = []
    while queue:
        node = queue.popleft()
        name = operation_of(node)
        if name in _SUMS or _is_scaled(node, name):
            for behind, _ in node.next_functions:
                if behind is not None and behind not in seen and len(seen) < _NODES:
                    seen.add(behind)
                    queue.append(behind)
            continue
        pairs = _product(node) or _of_single(node)
        if pairs is None:
            others.append(node)
        else:
            found[node] = pairs
    if not found:
        return None
    products = {node for node in nodes_behind(found, _BEHIND) if _product(node)}
    return (
        None
        if any(node in products for node in nodes_behind(others, _BEHIND))
        else next(iter(found.values()))
    )


def _of_single(node: Any) -> Pairs | None:
    """Returns the same for a function of single products, or the larger or smaller of two."""
    for _ in range(_DEPTH):
        name = operation_of(node)
        inner = [behind for behind, _ in node.next_functions if behind is not None]
        if name in _BOTH and len(inner) == 2:
            one, other = (_product(child) or _of_single(child) for child in inner)
            return one if one == other else None
        if len(inner) != 1 or not (name in _SINGLE or _is_scaled(node, name)):
            return None
        node = inner[0]
        pairs = _product(node)
        if pairs is not None:
            return pairs if len(pairs.output) + len(pairs.target) == 3 else None
    return None


def _is_scaled(node: Any, name: str) -> bool:
    """Returns whether a node multiplies or divides by one number without a gradient."""
    if name not in ("Mul", "Div"):
        return False
    if constant_factor(node, name == "Div") is not None:
        return True
    sides = [behind for behind, _ in node.next_functions]
    if len(sides) != 2 or sides.count(None) != 1:
        return False
    number = node._saved_other if sides[1] is None else node._saved_self  # on an accelerator, say
    return number is not None and number.numel() == 1


def _product(node: Any) -> Pairs | None:
    """Returns both sides of a product or quotient that repeats each side along the samples of the other;
    None for another node. Targets that are all the same go with any value.
    """
    name = operation_of(node)
    if name not in ("Mul", "Div") or len(node.next_functions) != 2:
        return None
    first, second = node.next_functions
    if (first[0] is None) == (second[0] is None) or (name == "Div" and first[0] is None):
        return None
    behind, place = first if second[0] is None else second
    target = node._saved_other if second[0] is None else node._saved_self
    if target is None or not isinstance(place, int):
        return None
    made = tuple(node._input_metadata[0].shape)
    one, other = tuple(behind._input_metadata[place].shape), tuple(target.shape)
    if not _repeats(one, other, made) and not _repeats(other, one, made):
        return None
    values = read(target)
    if values is not None and bool((values == values.flat[0]).all()):
        return None
    return Pairs(one, other, _grid(values))


def _grid(values: Any) -> int:
    """Returns a hash of values that are evenly spaced, or whose logarithms are, as `linspace` and `logspace` make them;
    0 of others.
    """
    if values is None or values.size < _GRID or values.size not in values.shape:
        return 0
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    if not (_is_even(flat) or (flat.min() > 0 and _is_even(np.log(flat)))):
        return 0
    return hash(flat.tobytes()) or 1


def _is_even(flat: Any) -> bool:
    steps = np.diff(flat)
    step = abs(steps.mean())
    off = np.abs(steps - steps.mean()).max()
    return bool(step > 0 and off <= _EVEN * step + _ROUNDING * np.abs(flat).max())


def _repeats(short: Shape, long: Shape, made: Shape) -> bool:
    """Returns whether (N, ...) and (N, 1, ...) make (N, N, ...)."""
    count = short[0] if short else 0
    return count > 1 and long == (count, 1, *short[1:]) and made == (count, *short)
