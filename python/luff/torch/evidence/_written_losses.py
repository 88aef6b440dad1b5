"""Losses that a script writes or reduces itself, as calls of torch's losses: outputs, targets and values.

An error that is written out (``((model(x) - y) ** 2).mean()``) calls no function that could be seen. The graph behind
the root of the backward pass has saved the difference, and what the model returned is copied, so that the targets are
one less the other. Of a loss with a value for each sample the graph shows which of them count. Looked at in steps whose
samples are taken; tensors are read as memory, and nothing is computed with torch.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from luff._codes import Mode, Role
from luff._rows import MAX_CALLS, WHOLE_BYTES, rows_that_fit
from luff.torch.capture._device import record_number
from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of, copy_of_rows, is_readable, numbers_in
from luff.torch.evidence._loss_graph import constant_factor, is_square, parts
from luff.torch.evidence._loss_terms import MOVES, axis_of, constant_of, read
from luff.torch.evidence._step import Step, StepContext
from luff.torch.evidence._written_likelihoods import Half, Pair, half_of, joined, likelihood_of
from luff.torch.evidence._written_targets import (
    focal_of,
    half_of_logits,
    joined_logits,
    rows_of_both,
    shares_of,
)

__all__ = ["WrittenLosses"]

_TRAIN = int(Mode.TRAIN)
_SAMPLE, _OTHER = int(Role.SAMPLE), int(Role.OTHER)
_DEPTH = 8  # nodes that are followed from a part of a loss, and from an error to the model
_ELEMENTS = 1 << 20  # of a difference that is read
_CALLED = 64  # losses of a step
_MISSES = 16  # steps without a written error after which what models return is copied at powers of two only
_KEEP = MOVES - {"Select", "Slice"}  # keep all elements, and their order
_LIKELIHOODS = frozenset(("Gather", "Index", "Log", "LogSigmoid", "LogSoftmax", "Logsumexp"))
_REDUCE = frozenset(("Mean", "Sum", "Sqrt"))
_BITS = {8: 53, 4: 24, 2: 11}  # of a number's significand, by its size


@dataclass(slots=True)
class _Output:
    """A copy of the first rows of what a model has returned."""

    edge: tuple[int, str, int]  # the node that made it, and the place among its results
    dtype: Any
    shape: tuple[int, ...]  # of the whole tensor
    words: Array


@dataclass(slots=True)
class _Unreduced:
    """A call of a loss that has returned a value for each sample."""

    number: int  # sequence number of the node that made them
    kind: str
    call: int
    values: Array  # a copy


@dataclass(slots=True)
class _Part:
    """What a part of a root is made of, behind sums, means and weights."""

    node: Any
    weights: Array | None = None  # that have no gradient
    factor: float = 1.0  # of one number


class WrittenLosses:
    """Under the hook's lock and guard. Keeps copies of one step at a time: 8 results of models, 64 KiB or a row each,
    and 8 losses of 65,536 values.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._step: weakref.ref[Step] | None = None  # that the following belong to
        self._outputs: list[_Output] = []
        self._unreduced: list[_Unreduced] = []
        self._called: set[int] = set()  # sequence numbers of nodes that losses of the user's own have made
        #: Called with a loss that was found, and the shape and first rows of the only output of the step's models.
        self.told: Callable[[str, int, Pair, tuple[int, ...], Any], None] | None = None
        self._only: _Output | None = None
        self._misses = 0
        self._begun = 0  # step before which optimizers or weights last changed

    def model_returned(self, step: Step, tensors: list[Any]) -> None:
        """Called with the tensors that the outermost call of a model has returned in training."""
        self._enter(step)
        count, begun = self._context.clock.mode_steps[_TRAIN], self._context.looked_from
        if begun != self._begun:  # other optimizers or weights: another phase, whose loss may be another
            self._begun, self._misses = begun, 0
        if self._misses >= _MISSES and count & (count - 1):
            return
        for tensor in tensors:
            if len(self._outputs) >= MAX_CALLS or not is_readable(tensor) or tensor.grad_fn is None:
                continue
            if not tensor.shape or not tensor.dtype.is_floating_point:
                continue
            words = copy_of_rows(tensor, rows_that_fit(tensor.shape, tensor.nbytes))
            if words is not None and words.size:
                edge = _edge(tensor.grad_fn, tensor.output_nr)
                self._outputs.append(_Output(edge, tensor.dtype, tuple(tensor.shape), words))

    def results(self, step: Step) -> list[_Output]:
        """Returns the copies of what the step's models have returned so far."""
        return self._outputs if self._step is not None and self._step() is step else []

    def unreduced(self, step: Step, kind: str, call: int, values: Any) -> None:
        """Called when a loss has returned a value with a gradient for each sample."""
        self._enter(step)
        if call >= MAX_CALLS or len(self._unreduced) >= MAX_CALLS or values.grad_fn is None:
            return
        array = read(values)
        if array is not None and array.size:
            number = values.grad_fn._sequence_nr()
            self._unreduced.append(_Unreduced(number, kind, call, array.astype(np.float64).reshape(-1)))

    def evaluated(self, kind: str, call: int, values: Any, count: float) -> None:
        """Called when a loss has returned a value for each sample in an evaluation: records their mean."""
        array = read(values) if call < MAX_CALLS and values.numel() <= _ELEMENTS else None
        if array is not None and array.size and count:
            self._value(kind, call, float(array.sum(dtype=np.float64)) / count)

    def called(self, step: Step, output: Any) -> None:
        """Called when a module without parameters has returned a loss."""
        self._enter(step)
        if output.grad_fn is not None and len(self._called) < _CALLED:
            self._called.add(output.grad_fn._sequence_nr())

    def root(self, step: Step, root: Any) -> None:
        """Called with the root of a backward pass that is no call of a loss by itself."""
        self._enter(step)
        outputs, self._outputs = self._outputs, []
        unreduced, self._unreduced = {one.number: one for one in self._unreduced}, []
        if not (outputs or unreduced):
            return
        called = self._called | step.loss_nodes.keys()
        self._only = outputs[0] if len(outputs) == 1 else None
        found = False
        halves: list[Half] = []
        with np.errstate(all="ignore"):  # numbers that are not finite say nothing to the user
            summed = parts(root, called)
            for node, weight in summed:
                try:
                    part = _behind(node, called, unreduced)
                    if part is None:
                        continue
                    known = unreduced.pop(part.node._sequence_nr(), None)
                    if known is not None:
                        self._reduced(known, part.weights)
                    else:
                        found |= self._written(step, part, weight, outputs, halves)
                except (
                    RuntimeError,
                    AttributeError,
                    IndexError,
                    ValueError,
                ):  # changed in place since, or freed
                    continue
            if (whole := joined(halves, len(summed)) or joined_logits(halves)) is not None:
                found |= self._call(step, *whole)
        self._misses = 0 if found else self._misses + 1

    def _enter(self, step: Step) -> None:
        if self._step is None or self._step() is not step:
            self._step = weakref.ref(step)
            self._misses += 1 if self._outputs else 0  # which no root has asked for
            self._outputs, self._unreduced, self._called = [], [], set()

    # Losses that a script reduces ------------------------------------------------------------------------------

    def _reduced(self, loss: _Unreduced, weights: Array | None) -> None:
        """Records the mean of the values that count, and which ones do where some may not."""
        values = loss.values
        if weights is not None:
            if weights.size != values.size or not _chooses(weights):
                return  # it is known of no value how much it counts
            counts = weights.reshape(-1) != 0
            values = values[counts]
            if not values.size:
                return
            flags = counts.astype(np.uint8)
            self._sample(f"sample/{loss.kind}_weight_{loss.call}", loss.kind, torch.uint8, flags.shape, flags)
        self._value(loss.kind, loss.call, float(values.mean()))

    # Losses that a script writes -------------------------------------------------------------------------------

    def _written(
        self, step: Step, part: _Part, weight: float, outputs: list[_Output], halves: list[Half]
    ) -> bool:
        """Records a part of a root if it is a loss with targets, and keeps half of one. Whether it is."""
        name, weight = operation_of(part.node), weight * part.factor
        if name in _LIKELIHOODS:
            weights = part.weights
            if weights is not None and (weights <= 0).all():
                weights, weight = -weights, -weight
            pair = likelihood_of(part.node, weights) if weight < 0 else None
            if pair is not None:
                return self._call(step, "NLLLoss", pair)
            if weight < 0 and weights is not None and (shares := shares_of(part.node, weights)) is not None:
                return self._call(step, *shares)
            half = half_of(part.node, weights, weight) or half_of_logits(part.node, weights, weight)
            if half is not None:
                halves.append(half)
            return False
        if name == "Mul" and not is_square(part.node):
            pair = focal_of(part.node, weight)
            return pair is not None and self._call(step, "NLLLoss", pair)
        squared = is_square(part.node) or _is_root_of_squares(part.node, name)
        kind = "MSELoss" if squared else "L1Loss" if name == "Abs" else ""
        if not kind and (half := half_of_logits(part.node, part.weights, weight)) is not None:
            halves.append(half)
        if not kind or (part.weights is not None and not (part.weights > 0).all()):
            return False
        if kind in step.sampled_losses and kind == "L1Loss":
            return False  # torch's own leaves the same graph
        difference = array_of(part.node._saved_self)
        if difference is None or not 0 < difference.size <= _ELEMENTS:
            return False
        pair = _pair(_source(part.node.next_functions[0][0]), difference, outputs)
        if pair is None:
            return False
        if kind == "MSELoss":
            return self._call(step, kind, pair, float(np.square(difference, dtype=np.float64).mean()))
        return self._call(step, kind, pair, float(np.abs(difference).mean(dtype=np.float64)))

    def _call(self, step: Step, kind: str, pair: Pair, value: float | None = None) -> bool:
        """Records a call of a loss: its two samples, and its value, by default that of `pair`."""
        call = step.sampled_losses.get(kind, 0)
        step.sampled_losses = {**step.sampled_losses, kind: call + 1}
        if call >= MAX_CALLS:
            return False
        self._sample(f"sample/{kind}_input_{2 * call}", kind, pair.dtype, pair.shape, pair.output)
        shape = pair.target_shape
        self._sample(f"sample/{kind}_input_{2 * call + 1}", kind, pair.target_dtype, shape, pair.target)
        self._value(kind, call, pair.value if value is None else value)
        if self.told is not None and (only := self._only) is not None:
            self.told(kind, call, pair, only.shape, numbers_in(only.words, only.dtype))
        return True

    def _sample(self, name: str, kind: str, dtype: Any, shape: tuple[int, ...], rows: Array) -> None:
        """Records the first rows of a tensor; `rows` holds their memory."""
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None:
            return
        number = recorder.number(name, _SAMPLE, "", kind)
        kept = max(WHOLE_BYTES // max(rows.nbytes // len(rows), 1), 1)
        rows = np.ascontiguousarray(rows[:kept])
        strides = tuple(size // rows.itemsize for size in rows.strides)
        if session.due_tensor(number):
            layout = recorder.layouts.find_rows(dtype, shape, strides, len(rows))
            if layout >= 0:
                session.capture_one(number, layout, int(rows.__array_interface__["data"][0]))

    def _value(self, kind: str, call: int, value: float) -> None:
        session, recorder = self._context.session, self._context.recorder
        if session is not None and recorder is not None and math.isfinite(value):
            number = recorder.number(f"{kind}_part_{call}", _OTHER, "", kind)
            record_number(session, recorder.layouts, number, value)


def _is_root_of_squares(node: Any, name: str) -> bool:
    """Whether a node is the Euclidean norm of all elements."""
    return name == "LinalgVectorNorm" and node._saved_ord == 2 and not node._saved_dim


def _edge(node: Any, place: int) -> tuple[int, str, int]:
    return node._sequence_nr(), node.name(), place


def _chooses(weights: Array) -> bool:
    """Whether all weights are 0 or 1."""
    return bool(((weights == 0) | (weights == 1)).all())


def _behind(node: Any, called: set[int], unreduced: dict[int, _Unreduced]) -> _Part | None:
    """Follows a part of a root through sums, means, constant factors and weights; None where it is, or goes on as, a
    call of a loss that is recorded as such.
    """
    part = _Part(node)
    for _ in range(_DEPTH):
        node = part.node
        if node is None or node._sequence_nr() in called:
            return None
        if node._sequence_nr() in unreduced or is_square(node):
            return part
        name = operation_of(node)
        following = node.next_functions
        if name in _KEEP or name in _REDUCE:
            part.node = following[0][0]
            continue
        factor = constant_factor(node, name == "Div") if name in ("Mul", "Div") else None
        factor = -1.0 if name == "Neg" else factor
        if factor is not None:
            part.node, part.factor = following[0][0], part.factor * factor
            continue
        weights, inner = _weights(node, name)
        if inner is None:
            return part
        if weights is not None and part.weights is not None:
            weights = rows_of_both(part.weights, weights)
        if weights is None:
            return None
        part.weights, part.node = weights, inner
    return None


def _weights(node: Any, name: str) -> tuple[Array | None, Any]:
    """Returns the weights that an operation gives to the elements of a tensor, and the node of that tensor; None for
    both where it gives none.
    """
    following = [child for child, _ in node.next_functions]
    if name == "Mul":
        weights, inner = constant_of(node)
    elif name == "MaskedFill":
        mask, inner = read(node._saved_mask), following[0]
        weights = None if mask is None else ~mask
    elif name == "Where" and (following[0] is None) != (following[1] is None):
        chosen = read(node._saved_condition)
        inner = following[0] or following[1]
        weights = chosen if chosen is None or following[0] is not None else ~chosen
    elif name == "Index" and len(node._saved_indices) == 1:
        mask = node._saved_indices[0]
        if mask is None or mask.dtype is not torch.bool:
            return None, None
        return read(mask), following[0]
    else:
        return None, None
    if inner is None:
        return None, None
    shape = tuple(node._input_metadata[0].shape)
    return (None if weights is None else np.broadcast_to(weights, shape)), inner


def _source(node: Any) -> tuple[Any, int, bool] | None:
    """Returns where the part of a difference that has a gradient comes from, and whether it is what is taken from."""
    name = operation_of(node)
    if name not in ("Sub", "Rsub") or getattr(node, "_saved_alpha", 1) != 1:
        return None
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    if len(edges) != 1 or len(node.next_functions) != 2:
        return None  # a number, or both have a gradient
    first = node.next_functions[0][0] is not None
    return *edges[0], first if name == "Sub" else not first


def _pair(source: tuple[Any, int, bool] | None, difference: Array, outputs: list[_Output]) -> Pair | None:
    """Returns what a model has returned and what was taken from it; None if that cannot be worked out."""
    if source is None:
        return None
    node, place, minuend = source
    shape = tuple(node._input_metadata[place].shape)
    moved: list[Any] = []
    while (known := next((o for o in outputs if o.edge == _edge(node, place)), None)) is None:
        name = operation_of(node)
        if len(moved) >= _DEPTH or not (name in _KEEP or name in ("Select", "Gather")):
            return None
        moved.append(node)
        node, place = node.next_functions[0]
        if node is None:
            return None
    words = _moved(known, moved, shape)
    numbers = None if words is None else numbers_in(words, known.dtype)
    if words is None or numbers is None or not shape:
        return None
    target, target_shape = _target(numbers, shape, difference, minuend)
    if target is None or target.size < 2 or (target == target.flat[0]).all():
        return None  # a number says nothing of the inputs
    dtype = {8: torch.float64, 4: torch.float32}.get(difference.itemsize, torch.float32)
    target = np.ascontiguousarray(target, np.float64 if dtype is torch.float64 else np.float32)
    return Pair(known.dtype, shape, words, dtype, target_shape, target)


def _moved(output: _Output, moved: list[Any], shape: tuple[int, ...]) -> Array | None:
    """Applies to the copy of a result what moved it on its way, so that it has the given shape; of a copy that is not
    whole only what leaves the rows as they are.
    """
    words = output.words
    if not moved:
        return words
    if len(words) < output.shape[0]:
        kept = all(operation_of(node) in _KEEP for node in moved)
        same = shape[0] == output.shape[0] and math.prod(shape) == math.prod(output.shape)
        return words.reshape(len(words), *shape[1:]) if kept and same else None
    for node in reversed(moved):
        name = operation_of(node)
        if name == "Select":
            axis, index = axis_of(node._saved_dim, words.ndim), int(node._saved_index)
            words = np.take(words, index - (1 << 64) if index >> 63 and index > 0 else index, axis)
        elif name == "Gather":
            places = read(node._saved_index)
            if places is None:
                return None
            words = np.take_along_axis(words, places.astype(np.int64), axis_of(node._saved_dim, words.ndim))
        else:
            words = words.reshape(tuple(node._input_metadata[0].shape))
    return words if words.shape == shape else None


def _target(
    output: Array, shape: tuple[int, ...], difference: Array, minuend: bool
) -> tuple[Array | None, tuple[int, ...]]:
    """Returns the first rows of what was taken from an output, and the whole shape of it."""
    rows = len(output)
    if difference.shape == shape:
        return _less(output, difference[:rows], minuend), shape
    if difference.ndim != 2 or difference.shape[0] != difference.shape[1] or rows != shape[0]:
        return None, ()
    count = difference.shape[0]
    if shape == (count, 1):  # less a target of (N,), which gives N x N differences
        target = _less(output[0], difference[0], minuend)
        again = _less(output[1], difference[1], minuend)
        return (target if np.allclose(target, again, rtol=1e-4, atol=1e-5) else None), (count,)
    if shape == (count,):
        target = _less(output[0], difference[:, :1], minuend)
        again = _less(output[1], difference[:, 1:2], minuend)
        return (target if np.allclose(target, again, rtol=1e-4, atol=1e-5) else None), (count, 1)
    return None, ()


def _less(output: Array, difference: Array, minuend: bool) -> Array:
    """Returns what was taken from the output, or what it was taken from. The difference was rounded to its own type;
    what that leaves uncertain is rounded away, so that whole numbers come back as such.
    """
    given = difference.astype(np.float64)
    target = output.astype(np.float64) - given if minuend else output.astype(np.float64) + given
    grid = np.ldexp(
        (given != 0).astype(np.float64), np.frexp(given)[1] + 1 - _BITS.get(difference.itemsize, 24)
    )
    rounded: Array = np.where(grid > 0, np.rint(target / grid) * grid, target)
    return rounded
