"""Finds whether a loss pairs the rows of its two arguments as they were before both were flattened."""

from __future__ import annotations

from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._events import WaitingEvents

__all__ = ["VIEWS", "LossRows", "base_shape"]

_MOST = 64  # calls that are remembered, and events of a run
_NODES = 8  # that are followed from the loss's argument
VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias"})
_COPIES = frozenset({"Clone", "ToCopy", "Alias", "Contiguous"})  # keep shape and order


def _shape_before(output: Any) -> list[int] | None:
    """Returns the shape that was flattened to that of a model's output; None if the graph does not show it."""
    node = output.grad_fn
    for _ in range(_NODES):
        name = operation_of(node)
        if name in VIEWS:
            sizes = getattr(node, "_saved_self_sym_sizes", None)
            return None if sizes is None else [int(size) for size in sizes]
        if name not in _COPIES:
            return None
        node = node.next_functions[0][0]
    return None


def base_shape(target: Any) -> list[int] | None:
    """Returns the shape of the tensor of which all of a target is a view, in the same order."""
    base = target._base
    if base is None or base.numel() != target.numel():
        return None
    return list(base.shape) if base.is_contiguous() and target.is_contiguous() else None


def _axes(shape: list[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _order(output: Any, target: Any) -> tuple[str, list[int], list[int]] | None:
    """Returns what is wrong with the order of the flattened rows, with both shapes before; None where nothing is known
    to be.
    """
    if output.dim() > 2:
        return _axes_read_otherwise(output, target)
    if not output.dim() or target.dim() > output.dim() or output.numel() < 2:
        return None
    before = _shape_before(output)
    if before is None or len(before) <= output.dim():
        return None
    base = base_shape(target) or list(target.shape)
    width = int(output.shape[1]) if output.dim() == 2 else 0
    rows = before
    if width > 1:
        if before[-1] != width:
            return _classes_cut(before, base, width)
        rows = before[:-1]
        if target.dim() == 2 and base[-1] == width:
            base = base[:-1]
    ours, theirs = _axes(rows), _axes(base)
    return ("rows", before, base) if ours != theirs and sorted(ours) == sorted(theirs) else None


def _classes_cut(before: list[int], base: list[int], width: int) -> tuple[str, list[int], list[int]] | None:
    """Looks at scores whose last axis was not that of the classes when they were flattened to rows of classes."""
    if width not in before[1:-1]:
        return None
    at = before.index(width, 1)
    if all(size == 1 for size in before[at + 1 :]):
        return None  # one place a row, as behind a pooling of all places: the classes lie side by side
    without = before[:at] + before[at + 1 :]
    told = len(base) > 1 and _axes(without) == _axes(base)
    return ("classes", before, base) if told or before[-1] % width else None


def _axes_read_otherwise(output: Any, target: Any) -> tuple[str, list[int], list[int]] | None:
    """Looks at scores of (N, C, places) whose memory is that of (N, places, C): a reshape exchanges no axes."""
    shape = list(output.shape)
    places = [shape[0], *shape[2:]]
    if target.dtype.is_floating_point or list(target.shape) != places or min(shape[1:]) < 2:
        return None
    before = [*places, shape[1]]
    if before == shape or _shape_before(output) != before:
        return None
    node = output.grad_fn
    for _ in range(2 * _NODES):
        if operation_of(node) in VIEWS and list(node._saved_self_sym_sizes)[-1] != shape[1]:
            return None  # rows that were cut into scores by a reshape: the layer behind it is free to learn any order
        if operation_of(node) not in VIEWS | _COPIES:
            return "axes", before, places
        node = node.next_functions[0][0]
    return None


class LossRows(WaitingEvents):
    """Tells of each call of a loss whether its flattened rows were paired in another order, whenever that changes."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, int], str] = {}
        self._told = 0

    def loss_called(self, kind: str, call: int, output: Any, target: Any) -> None:
        """Called when a loss with a gradient was called; `call`: its place among the calls of its kind in the step."""
        key = kind, call
        if self._told >= _MOST or (key not in self._known and len(self._known) >= _MOST):
            return
        try:
            found = _order(output, target)
        except RuntimeError:  # a tensor without a view counter, or symbolic sizes
            return
        order = found[0] if found else ""
        if order == self._known.get(key, ""):
            return
        self._known[key] = order
        self._told += 1
        _, shape, other = found or ("", [], [])
        event = {"kind": "loss_rows", "loss": kind, "call": call, "crossed": order}
        self.waiting.append(event | {"output": shape, "target": other})
