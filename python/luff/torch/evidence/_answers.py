"""Labels of evaluations that compute no loss: those that a model's answers are compared with.

An evaluation that only counts right answers takes the largest score of each row, and compares it with the labels. The
scores are known, since in training the same output of the same model went into a loss; a comparison of just these
answers shows the labels. Both become a sample of that loss, without a value.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from luff._codes import Mode, Role
from luff._rows import rows_that_fit
from luff._weak import Identities
from luff.torch.capture._memory import address_of, copy_of_rows, is_readable, numbers_in
from luff.torch.capture._modules import tensors_in
from luff.torch.capture._names import shapes_of
from luff.torch.evidence._step import Step, StepContext
from luff.torch.evidence._unused_passes import UnusedPasses
from luff.torch.evidence._written_losses import WrittenLosses

__all__ = ["Answers", "compares"]

_SAMPLE, _TRAIN = int(Role.SAMPLE), int(Mode.TRAIN)
_OUTPUTS = 8  # tensors of a model's result that are looked at
_LEAST = 2  # rows: one is right by chance too often
_OTHERS = 8  # answers that are remembered
#: Losses of classes, and from which score on a row is positive; None: the largest score of several is the answer.
_LIMITS: dict[str, float | None] = {
    "CrossEntropyLoss": None,
    "NLLLoss": None,
    "BCEWithLogitsLoss": 0.0,
    "BCELoss": 0.5,
}


class _Waits:
    on = False  # an evaluation's scores wait for a comparison


compares = _Waits()


@dataclass(slots=True)
class _Head:
    """An output of a model that goes into a loss in training."""

    kind: str
    call: int  # its place among the calls of its kind in a step
    shown: bool = False  # labels were compared with its answers


@dataclass(slots=True)
class _Rows:
    """A copy of the first rows of a tensor."""

    dtype: Any
    shape: tuple[int, ...]  # of the whole tensor
    words: NDArray[Any]  # its memory
    numbers: NDArray[Any]


@dataclass(slots=True)
class _Scores:
    """Scores of an evaluation whose answers may be compared with labels."""

    head: _Head
    rows: _Rows
    answers: NDArray[Any]  # of the rows that were copied
    shape: tuple[int, ...]  # of all answers
    labels: _Rows | None = None


def _first_rows(tensor: Any, rows: int) -> _Rows | None:
    words = copy_of_rows(tensor, rows)
    numbers = None if words is None else numbers_in(words, tensor.dtype)
    return (
        None if words is None or numbers is None else _Rows(tensor.dtype, tuple(tensor.shape), words, numbers)
    )


def _scores_in(tensor: Any) -> _Rows | None:
    """Returns as many rows of an output as a sample holds; None if they are none to compare."""
    if not is_readable(tensor) or not tensor.shape or not tensor.dtype.is_floating_point:
        return None
    kept = min(rows_that_fit(tensor.shape, tensor.nbytes), tensor.shape[0])
    return _first_rows(tensor, kept) if kept >= _LEAST else None


def _has_classes(rows: _Rows) -> bool:
    return len(rows.shape) > 1 and rows.shape[1] > 1


def _agree(labels: NDArray[Any], answers: NDArray[Any]) -> bool:
    rows = min(len(labels), len(answers))
    return bool(np.array_equal(labels[:rows].reshape(rows, -1), answers[:rows].reshape(rows, -1)))


def _same_values(one: Any, other: Any) -> bool:
    """Whether two tensors are the same memory: one may be a view of the other."""
    if one is other or one is None or not (is_readable(one) and is_readable(other)):
        return one is other
    address = address_of(one)
    return bool(address and address == address_of(other) and one.numel() == other.numel())


class Answers:
    """Under the hook's lock and guard. Keeps the scores of one forward pass at a time, at most 8 x 64 KiB."""

    def __init__(self, context: StepContext, written: WrittenLosses, passes: UnusedPasses) -> None:
        self._context = context
        self._written = written
        self._passes = passes
        self._heads: Identities[dict[int, _Head]] = Identities()  # of a model, by place in its result
        #: Of a model that is not trained: the one that is, and whether both have parameters of the same shapes.
        self._copies: Identities[tuple[weakref.ref[Any], bool]] = Identities()
        #: The model called last in training, and what it returned.
        self._trained: tuple[Any, list[Any]] | None = None
        self._evaluation = 0  # evaluations that training has ended
        self._scores: list[_Scores] = []
        #: Answers of other forward passes, which are no labels, and in which evaluation they were given.
        self._others: deque[tuple[int, NDArray[Any]]] = deque(maxlen=_OTHERS)

    def model_returned(self, module: Any, output: Any) -> None:
        """Called when the outermost call of a model has returned."""
        step = self._context.step
        if step is None or not step.samples:
            return
        tensors = list(islice(tensors_in(output), _OUTPUTS))
        if step.mode == _TRAIN:
            self._evaluation += 1
            if torch.is_grad_enabled():
                self._trained = weakref.ref(module), [weakref.ref(tensor) for tensor in tensors]
                self._written.model_returned(step, tensors)
                if self._passes.on:
                    self._passes.model_returned(step, module, tensors)
            return
        self._scores = []
        heads = self._heads.get(module) or self._heads_of_a_copy(module)
        for place, tensor in enumerate(tensors):
            rows, head = _scores_in(tensor), heads.get(place)
            if rows is None:
                continue
            limit = None if head is None else _LIMITS[head.kind]
            if head is not None and limit is not None:
                self._scores.append(_Scores(head, rows, rows.numbers > limit, rows.shape))
            elif head is not None and _has_classes(rows):
                shape = (rows.shape[0], *rows.shape[2:])
                self._scores.append(_Scores(head, rows, rows.numbers.argmax(axis=1), shape))
            elif head is None and _has_classes(rows) and len(rows.shape) == 2:
                self._others.append((self._evaluation, rows.numbers.argmax(axis=1)))
        compares.on = bool(self._scores)

    def _heads_of_a_copy(self, module: Any) -> dict[int, _Head]:
        """Returns the outputs of the model that is trained, if `module` has its shapes: a copy, or an average."""
        trained = None if self._trained is None else self._trained[0]()
        if trained is None or trained is module or (heads := self._heads.get(trained)) is None:
            return {}
        known = self._copies.get(module)
        if known is None or known[0]() is not trained:
            known = self._copies[module] = weakref.ref(trained), shapes_of(module) == shapes_of(trained)
        return heads if known[1] else {}

    def loss_called(self, kind: str, call: int, output: Any) -> None:
        """Called when a loss of targets was called in training with this output of a model."""
        if kind not in _LIMITS or self._trained is None:
            return
        module, outputs = self._trained[0](), self._trained[1]
        if module is None:
            return
        for place, reference in enumerate(outputs):
            if _same_values(reference(), output):
                heads = self._heads.get(module)
                if heads is None:
                    heads = self._heads[module] = {}
                known = heads.get(place)
                if known is None or (known.kind, known.call) != (kind, call):
                    heads[place] = _Head(kind, call)
                return

    def compared(self, one: Any, other: Any) -> None:
        """Called when two tensors were compared for equality."""
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return
        for scores in self._scores:
            if scores.labels is None and (self._shows(scores, one, other) or self._shows(scores, other, one)):
                return

    def _shows(self, scores: _Scores, answers: Any, labels: Any) -> bool:
        """Takes the labels, if `answers` are those of the scores."""
        for tensor in (answers, labels):
            if not is_readable(tensor) or not tensor.shape or tensor.shape[0] != scores.shape[0]:
                return False
            if tensor.numel() != math.prod(scores.shape):
                return False
        rows = len(scores.answers)
        given = _first_rows(answers, rows)
        if given is None or not _agree(given.numbers, scores.answers):
            return False
        shown = _first_rows(labels, rows)
        if shown is None:
            return False
        # Where these are answers, too, two models are compared, or two passes. Labels that were right in an earlier
        # evaluation are the same as the answers of then.
        others = [one.answers for one in self._scores if one is not scores]
        others += [
            given
            for evaluation, given in self._others
            if evaluation == self._evaluation or not scores.head.shown
        ]
        if any(_agree(shown.numbers, one) for one in others):
            return False
        scores.labels, scores.head.shown = shown, True
        return True

    def record(self, step: Step) -> None:
        """Records scores and labels at the end of a step, unless the step has called the loss."""
        if not self._scores:
            return
        scores, self._scores = self._scores, []
        compares.on = False
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None or not step.begun:
            return
        self._others.extend((self._evaluation, one.answers) for one in scores)
        for one in scores:
            kind, call = one.head.kind, one.head.call
            if one.labels is None or step.sampled_losses.get(kind, 0) > call:
                continue
            labels = one.labels.words.reshape((-1, *one.shape[1:]))  # as the training has them
            for index, (dtype, shape, words) in enumerate(
                ((one.rows.dtype, one.rows.shape, one.rows.words), (one.labels.dtype, one.shape, labels))
            ):
                number = recorder.number(f"sample/{kind}_input_{2 * call + index}", _SAMPLE, "", kind)
                if not session.due_tensor(number):
                    continue
                strides = tuple(size // words.itemsize for size in words.strides)
                layout = recorder.layouts.find_rows(dtype, shape, strides, len(words))
                if layout >= 0:
                    session.capture_one(number, layout, int(words.__array_interface__["data"][0]))
