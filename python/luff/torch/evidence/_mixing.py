"""Finds a reshape that moves the samples of a batch to another axis, and asks the model whether it mixes them.

The graph shows each reshape with the shapes before and behind it. If the batch is one axis of both, with other axes in
front of it, rows behind the reshape hold values of several samples: a transposition is missing. A softmax along the
first axis shares 1 out among the samples where they lie there. Sizes may agree by chance, so the model itself decides:
a forked child exchanges all samples but the first, or gives others in their place, in evaluation mode, and looks
whether the answer for the first one changes. docs/adr/0010.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._asked import Asked, AskedOfCalls, reordered
from luff.torch.evidence._first_axis import shared_along_first, weighs_along_another
from luff.torch.evidence._graph_values import users_of
from luff.torch.evidence._loss_rows import VIEWS, base_shape

__all__ = ["Mixing", "evaluate", "is_moved"]

_MOST_CALLS = 4  # of models in a step
_LEAST_ROWS = 4
_MOST_ROWS = 1 << 12
_AXES = 4  # of an argument, among which the batch is looked for
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Mixing(AskedOfCalls):
    """Looks for reshapes that mix samples, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("mixing", opened)
        self._rows = 0  # of the loss's target

    def begins(self, step: int) -> None:
        """Called when a TRAIN step begins; steps are counted from the first of the process."""
        AskedOfCalls.begins(self, step)
        self._rows = 0

    def model_called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers a model's call."""
        if self._step >= 0 and len(self._calls) < _MOST_CALLS:
            self._calls.append((weakref.ref(model), args, kwargs))

    def loss_called(self, target: Any) -> None:
        """Remembers how many rows the target of the step's first loss has, before it was flattened."""
        if self._step < 0 or self._rows or not isinstance(target, torch.Tensor):
            return
        if not target.dim() or not is_readable(target):
            return
        try:
            self._rows = int((base_shape(target) or target.shape)[0])
        except RuntimeError:  # a tensor without a view counter
            return

    def leave_out(self) -> None:
        """Forgets the step: its graph cannot be read."""
        self._calls.clear()
        self._step = -1

    def backward_begins(self, nodes: list[Any]) -> None:
        """Starts the child, if a reshape among the nodes of the graph moves the batch, or something is shared out along
        the first axis, where the samples may lie.
        """
        rows, calls = self._rows, [call for call in self._calls if call[0]() is not None]
        step = self._step
        self.leave_out()
        batch = _LEAST_ROWS <= rows <= _MOST_ROWS
        asked = [call for call in calls if batch and _has_rows(call, rows)]
        moved = _first_moved(nodes, rows) if asked else None
        if moved is not None:
            self.ask(step, partial(evaluate, asked, rows, *moved), [call[0]() for call in asked])
            return
        shared = shared_along_first(nodes)
        if shared and not asked:  # targets in one row whose first or last places are left out
            rows = _rows_of(calls, rows)
            asked = [call for call in calls if rows and _has_rows(call, rows)]
        shared = [one for one in shared if rows and one.shape[0] % rows == 0]
        if not shared or not asked:
            return
        users = users_of(nodes)
        weighing = [one for one in shared if weighs_along_another(one, users)]
        first = (weighing or shared)[-1]  # of the forward pass
        told = {"shape": first.shape[:8], "of": first.of, "weighs": bool(weighing)}
        if first.whole:
            told["whole"] = True
        self.ask(step, partial(evaluate_others, asked, rows, told), [call[0]() for call in asked])


def _rows_of(calls: list[Call], targets: int) -> int:
    """Returns how many rows the first argument of the models has, of which each has several targets; 0: not known."""
    for call in calls:
        for tensor in tensors_in(call[1:]):
            rows = int(tensor.shape[0]) if tensor.dim() else 0
            return rows if _LEAST_ROWS <= rows < min(targets, _MOST_ROWS) and targets % rows == 0 else 0
    return 0


def _axis_of(tensor: Any, rows: int) -> int | None:
    """Returns the one axis of a tensor that has as many places as the batch has samples; None if it is not just one."""
    found = [axis for axis, size in enumerate(tensor.shape) if size == rows]
    return found[0] if len(found) == 1 and found[0] < _AXES else None


def _has_rows(call: Call, rows: int) -> bool:
    return any(is_readable(one) and _axis_of(one, rows) is not None for one in tensors_in(call[1:]))


def is_moved(before: Sequence[int], behind: Sequence[int], rows: int) -> bool:
    """Whether a reshape from one shape to the other moves the axis of `rows` samples past other axes.

    A reshape keeps the order of the values, so what lies in front of the samples' axis must have as many places as
    before: (layers, N, width) to (N, layers * width) puts values of several samples into one row. Where several axes
    have as many places as there are samples, any of them may be theirs. The last axis holds the numbers of a sample:
    one that is as long as the batch is no batch.
    """
    fronts = _fronts(before[:-1], rows), _fronts(behind[:-1], rows)
    return all(fronts) and not fronts[0] & fronts[1]


def _fronts(shape: Sequence[int], rows: int) -> set[int]:
    """Returns how many places lie in front of each axis of `rows` places."""
    return {math.prod(shape[:axis]) for axis, size in enumerate(shape) if size == rows}


def _first_moved(nodes: Iterable[Any], rows: int) -> tuple[list[int], list[int]] | None:
    """Returns the shapes before and behind the first reshape of the forward pass that moves the batch."""
    found = None
    for node in nodes:  # from the loss backwards
        if operation_of(node) not in VIEWS:
            continue
        sizes, results = (getattr(node, name, None) for name in ("_saved_self_sym_sizes", "_input_metadata"))
        if sizes is None or not results:
            continue
        before, behind = [int(size) for size in sizes], [int(size) for size in results[0].shape]
        if is_moved(before, behind, rows):
            found = before, behind
    return found


def _answer(result: Any, rows: int) -> Any:
    """Returns the first result with one place for each sample, the samples first; None if there is none."""
    if hasattr(result, "logits"):
        result = result.logits
    for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in((result,)):
        axis = _axis_of(tensor, rows)
        if axis is not None and tensor.dtype.is_floating_point:
            return tensor.movedim(axis, 0).reshape(rows, -1).double()
    return None


def evaluate(calls: list[Call], rows: int, before: list[int], behind: list[int]) -> dict[str, Any] | None:
    """Evaluates the models with their samples exchanged. Only for a forked child: modes and buffers change."""
    found = None
    for reference, args, kwargs in calls:
        model = reference()
        try:
            one = None if model is None else _compared(model, args, kwargs, rows)
        except Exception:  # no other order fits, e.g. of sorted lengths
            one = None
        if one is not None and (found is None or one["across"] > found["across"]):
            found = one
    return None if found is None else found | {"rows": rows, "before": before, "behind": behind}


def evaluate_others(calls: list[Call], rows: int, told: dict[str, Any]) -> dict[str, Any] | None:
    """Evaluates the models with other samples beside the first one, without a change of their order, by which a softmax
    along the batch is the same; and with fewer samples, which a batch may have. Only for a forked child.
    """
    found = None
    for reference, args, kwargs in calls:
        model = reference()
        try:
            one = None if model is None else _compared(model, args, kwargs, rows, [0] + [1] * (rows - 1))
            if one is not None:  # what takes no fewer rows has no batch: the nodes of one graph
                fewer = reordered(
                    [args, kwargs], torch.arange(rows // 2), lambda tensor: _axis_of(tensor, rows)
                )
                with torch.no_grad():
                    model(*fewer[0], **fewer[1])
        except Exception:  # no other order fits, e.g. of sorted lengths
            one = None
        if one is not None and (found is None or one["across"] > found["across"]):
            found = one
    return None if found is None else found | {"rows": rows, **told}


def _compared(
    model: Any, args: Any, kwargs: Any, rows: int, others: list[int] | None = None
) -> dict[str, Any] | None:
    model.eval()

    def outputs(order: list[int] | None) -> Any:
        given = (
            [args, kwargs]
            if order is None
            else reordered([args, kwargs], torch.tensor(order), lambda one: _axis_of(one, rows))
        )
        with torch.no_grad():
            return _answer(model(*given[0], **given[1]), rows)

    plain = outputs(None)
    if plain is None or not bool(torch.isfinite(plain).all()) or not torch.equal(plain, outputs(None)):
        return None
    spread = float(plain.std())
    if not spread > 0:
        return None
    across = outputs(others or [0, *range(2, rows), 1])[0] - plain[0]  # all samples but the first
    own = outputs([1, *range(1, rows)])[0] - plain[0]  # the first alone
    return {"across": float(across.abs().max()) / spread, "itself": float(own.abs().max()) / spread}
