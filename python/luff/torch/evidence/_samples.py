"""Samples: the first rows of inputs of models and losses, if a collection wants this role.

Uses no tensor operation: a prefix of rows is a layout over the tensor's own memory. Values seen before the session is
open (in the step whose backward pass opens it) are copied and kept until then; their number is bounded. Those on an
accelerator are not copied: they are read when it is open, if they still exist unchanged.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from luff import _codes as codes
from luff._codes import GapReason, Mode, Role
from luff._rows import MAX_CALLS, MAX_TENSORS, WHOLE_BYTES, rows_that_fit
from luff.torch.capture._device import DeviceRows, Unchanged, is_on_device
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.capture._names import class_name
from luff.torch.evidence._answers import Answers
from luff.torch.evidence._batches import Batches
from luff.torch.evidence._causal import Causal, cuts
from luff.torch.evidence._mixing import Mixing
from luff.torch.evidence._step import Step, StepContext

__all__ = ["Samples", "of_loss", "rows_to_keep"]

_SAMPLE, _TRAIN = int(Role.SAMPLE), int(Mode.TRAIN)
_UNSUPPORTED, _TOO_MANY = int(GapReason.UNSUPPORTED), int(GapReason.TOO_MANY)
_NOT_SEEN = int(GapReason.NOT_SEEN)
_EARLY_BYTES = 4 << 20  # bytes copied before the session is open
_EARLY_VALUES = 64
_MOST_MODELS = 64  # of which it is told that they get what the graph has made


def rows_to_keep(tensor: Any) -> int:
    """Returns how many rows of a tensor fit: all of a small one (1 for a number), 0 if not even one does."""
    if not is_readable(tensor) and not is_on_device(tensor):
        return 1
    if tensor.shape and not tensor.nbytes:
        return int(tensor.shape[0])
    return rows_that_fit(tensor.shape, tensor.nbytes)


def _as_many_rows(one: Any, other: Any) -> bool:
    return bool(one.shape and other.shape and one.shape[0] == other.shape[0])


def of_loss(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...] = ()) -> list[Any]:
    """Returns the first two tensors passed to a loss, output and target. `names`: its parameters, if known."""
    if kwargs:
        order = names or ("input", "target")
        given = [*args, *(kwargs[name] for name in order if name in kwargs)]
        given += [value for name, value in kwargs.items() if name not in order]
    else:
        given = list(args)
    return list(islice(tensors_in(given), 2))


@dataclass(slots=True)
class _Early:
    """A value seen before the session was open."""

    model: Any  # weak reference to the model; None for a loss
    kind: str
    number: int
    dtype: Any
    shape: Any
    strides: Any
    rows: int
    data: bytes
    tensor: Unchanged | None = None  # instead of `data`


class Samples:
    """Takes samples, under the hook's lock and guard."""

    def __init__(self, context: StepContext, causal: Causal, mixing: Mixing, answers: Answers) -> None:
        self._context = context
        self._causal = causal
        self._mixing = mixing
        self._answers = answers
        self._made: set[str] = set()  # models that get what a graph has made
        self.early = True  # if False, no collection wants samples: none are kept before the session is open

    def model(self, step: Step, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Samples the inputs of a model's call."""
        if not step.samples and not self._before(step):
            return
        used = first = step.sampled.get(id(module), 0)
        train = step.mode == _TRAIN
        reference = weakref.ref(module)
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            if used >= MAX_TENSORS:
                break
            if used == first and Batches.on:
                self._answers.batches.asked(tensor)
            self._take(step, reference, "", used, tensor, rows_to_keep(tensor))
            if train and used == first and tensor.requires_grad and tensor.grad_fn is not None:
                self._tell_made(module)
            used += 1
        step.sampled = {**step.sampled, id(module): used}

    def _tell_made(self, module: Any) -> None:
        """Tells once of each model that the first argument of a call of a step was made by the graph."""
        session, found = self._context.session, self._context.names.find(module)
        if session is None or found is None or found[0] in self._made or len(self._made) >= _MOST_MODELS:
            return
        self._made.add(found[0])
        session.event_json(json.dumps({"kind": "made_inputs", "model": found[0]}))

    def loss(
        self,
        step: Step,
        kind: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: tuple[str, ...] = (),
    ) -> None:
        """Samples the inputs of a loss's call."""
        call = step.sampled_losses.get(kind, 0)
        step.sampled_losses = {**step.sampled_losses, kind: call + 1}
        if call >= MAX_CALLS or (not step.samples and not self._before(step)):
            return
        tensors = of_loss(args, kwargs, names)
        if len(tensors) == 2 and self._causal.due:
            self._has_target(tensors[1], tensors[0])
        if len(tensors) == 2 and step.mode == _TRAIN:
            self._answers.loss_called(kind, call, *tensors)
        rows = [rows_to_keep(tensor) for tensor in tensors]
        if (
            len(tensors) == 2
            and all(is_readable(t) or is_on_device(t) for t in tensors)
            and _as_many_rows(*tensors)
        ):
            rows = [min(rows)] * 2
        for index, tensor in enumerate(tensors):
            self._take(step, None, kind, 2 * call + index, tensor, rows[index])

    def of_graph(self, step: Step, values: Iterable[tuple[str, int, Any]], node: Any) -> None:
        """Samples (kind, K, tensor) tuples of a loss that the graph shows, by its node."""
        if step.samples:
            for kind, number, tensor in values:
                self._take(step, None, kind, number, tensor, rows_to_keep(tensor))
                if number & 1 and self._causal.due:
                    self._has_target(tensor, node=node)

    def flush(self, step: Step) -> None:
        """Hands over what was kept before the session was open."""
        early, step.early = step.early, ()
        session, recorder = self._context.session, self._context.recorder
        if not early or not step.samples or session is None or recorder is None:
            return
        for value in early:
            number = self._number(value.model, value.kind, value.number)
            if number < 0 or not session.due_tensor(number):
                continue
            layout = recorder.layouts.find_rows(value.dtype, value.shape, value.strides, value.rows)
            if layout >= 0 and value.tensor is not None:
                tensor = value.tensor()
                if tensor is None:
                    session.gap(number, _NOT_SEEN, session.due_tensor(number), 1)
                else:
                    DeviceRows(session).one(number, layout, tensor)
            elif layout >= 0:
                buffer = np.frombuffer(value.data, dtype=np.uint8)
                session.capture_one(number, layout, int(buffer.__array_interface__["data"][0]))

    def lost(self, step: Step) -> None:
        """Records a gap: an evaluation interrupts the step, so its samples are dropped."""
        session = self._context.session
        if step.samples and (step.sampled or step.sampled_losses) and session is not None:
            session.gap(codes.NO_ID, _NOT_SEEN, session.due_role(_SAMPLE), 1)

    # Inside ----------------------------------------------------------------------------------------------------

    def _has_target(self, target: Any, output: Any = None, node: Any = None) -> None:
        self._causal.loss_called(target, output, node)
        self._mixing.loss_called(target)
        session = self._context.session
        if session is None:
            return
        for start, places, of in cuts(target, output, node):
            session.event_json(json.dumps({"kind": "places_cut", "start": start, "places": places, "of": of}))

    def _before(self, step: Step) -> bool:
        return self._context.session is None and self.early and (step.mode == _TRAIN or step.may_train)

    def _number(self, model: Any, kind: str, index: int) -> int:
        """Returns the number of a sample's tensor; -1 for a model that has no name yet."""
        recorder = self._context.recorder
        if recorder is None:
            return -1
        if model is None:
            return recorder.number(f"sample/{kind}_input_{index}", _SAMPLE, "", kind)
        module = model()
        found = None if module is None else self._context.names.find(module)
        if found is None:
            return -1
        return recorder.number(f"sample/{found[0]}_input_{index}", _SAMPLE, "", class_name(found[2]))

    def _take(self, step: Step, model: Any, kind: str, index: int, tensor: Any, rows: int) -> None:
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None:
            self._keep(step, model, kind, index, tensor, rows)
            return
        number = self._number(model, kind, index)
        if number < 0:
            return
        forms = session.due_tensor(number)
        if not forms:
            return
        there = False
        try:
            there = is_on_device(tensor)
            if there and not session.reads_accelerators:
                session.gap(number, _UNSUPPORTED, forms, 1)
                return
            if there or is_readable(tensor):
                if rows == 0 and tensor.numel():
                    session.gap(number, _TOO_MANY, forms, 1)
                    return
                if tensor.is_neg() or tensor.is_conj():
                    layout = -1
                else:
                    layout = recorder.layouts.find_rows(tensor.dtype, tensor.shape, tensor.stride(), rows)
            else:
                layout, tensor = recorder.layouts.find_local(tensor)
                if layout >= 0 and tensor.nbytes > WHOLE_BYTES:
                    layout = -1
            address = address_of(tensor) if layout >= 0 else 0
        except (RuntimeError, NotImplementedError):  # a tensor inside a transform (vmap, grad) has no memory
            layout = -1
        if layout < 0 or (not address and tensor.numel()):
            session.gap(number, _UNSUPPORTED, forms, 1)
            return
        if there:
            DeviceRows(session).one(number, layout, tensor)
        else:
            session.capture_one(number, layout, address)

    def _keep(self, step: Step, model: Any, kind: str, index: int, tensor: Any, rows: int) -> None:
        """Copies the memory of the rows if there is room."""
        there = is_on_device(tensor)
        if not (there or is_readable(tensor)) or tensor.is_neg() or tensor.is_conj() or not rows:
            return
        shape = (rows, *tensor.shape[1:]) if tensor.shape else ()
        elements = sum((n - 1) * s for n, s in zip(shape, tensor.stride(), strict=True)) + 1
        size = elements * tensor.element_size() if tensor.numel() and not there else 0
        if len(step.early) >= _EARLY_VALUES or size + sum(len(e.data) for e in step.early) > _EARLY_BYTES:
            return
        address = address_of(tensor)
        if size and not address:
            return
        data = ctypes.string_at(address, size) if size else b"\0"
        early = _Early(model, kind, index, tensor.dtype, tensor.shape, tensor.stride(), rows, data)
        early.tensor = Unchanged(tensor) if there else None
        step.early = [*step.early, early]
