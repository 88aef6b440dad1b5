"""Labels of evaluations that compute no loss: those that a model's answers are compared with.

An evaluation that only counts right answers takes the largest score of each row, and compares it with the labels. The
scores are known, since in training the same output of the same model went into a loss; a comparison of just these
answers shows the labels. Both become a sample of that loss, without a value.
"""

from __future__ import annotations

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
from luff.torch.capture._memory import array_of, array_view, is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._step import Step, StepContext

__all__ = ["Answers", "compares"]

_SAMPLE, _TRAIN, _EVAL = int(Role.SAMPLE), int(Mode.TRAIN), int(Mode.EVAL)
_OUTPUTS = 8  # tensors of a model's result that are looked at
_LEAST = 2  # rows: one is right by chance too often
_OTHERS = 8  # answers that are remembered
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LABELS = {
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
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
    dtype: Any  # of the targets


@dataclass(slots=True)
class _Rows:
    """A copy of the first rows of a tensor."""

    dtype: Any
    shape: tuple[int, ...]  # of the whole tensor
    array: NDArray[Any]  # its memory, as words of the same size


@dataclass(slots=True)
class _Scores:
    """Scores of an evaluation whose answers may be compared with labels."""

    head: _Head
    rows: _Rows
    answers: NDArray[Any]  # of the rows that were copied
    shape: tuple[int, ...]  # of all answers
    labels: _Rows | None = None


def _first_rows(tensor: Any, rows: int) -> _Rows | None:
    word = _WORDS.get(tensor.element_size())
    if word is None or tensor.is_neg() or tensor.is_conj():
        return None
    return _Rows(tensor.dtype, tuple(tensor.shape), array_view(tensor, word)[:rows].copy())


def _agree(labels: NDArray[Any], answers: NDArray[Any]) -> bool:
    rows = min(len(labels), len(answers))
    return bool(np.array_equal(labels[:rows], answers[:rows].reshape(rows, -1)))


class Answers:
    """Under the hook's lock and guard. Keeps the scores of one forward pass at a time, at most 8 x 64 KiB."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._heads: Identities[dict[int, _Head]] = Identities()  # of a model, by place in its result
        self._trained: tuple[Any, list[Any]] | None = (
            None  # the model called last in training, and what it returned
        )
        self._scores: list[_Scores] = []
        self._others: deque[NDArray[Any]] = deque(
            maxlen=_OTHERS
        )  # answers of other forward passes: no labels

    def model_returned(self, module: Any, output: Any) -> None:
        """Called when the outermost call of a model has returned."""
        step = self._context.step
        if step is None or not step.samples:
            return
        tensors = list(islice(tensors_in(output), _OUTPUTS))
        if step.mode == _TRAIN:
            if torch.is_grad_enabled():
                self._trained = weakref.ref(module), [weakref.ref(tensor) for tensor in tensors]
            return
        self._scores = []
        heads = self._heads.get(module) or {}
        for place, tensor in enumerate(tensors):
            if place not in heads:
                self._keep_other(tensor)
            elif (scores := self._scores_of(heads[place], tensor)) is not None:
                self._scores.append(scores)
        compares.on = bool(self._scores)

    def loss_called(self, kind: str, call: int, output: Any, target: Any) -> None:
        """Called when a loss was called in training with these two tensors."""
        if kind not in _LIMITS or self._trained is None:
            return
        reference, outputs = self._trained
        module = reference()
        if module is None:
            return
        for place, tensor in enumerate(one() for one in outputs):
            if tensor is output or (
                tensor is not None
                and is_readable(tensor)
                and is_readable(output)
                and tensor.data_ptr() == output.data_ptr()
                and tensor.numel() == output.numel()
            ):
                heads = self._heads.get(module)
                if heads is None:
                    heads = self._heads[module] = {}
                heads[place] = _Head(kind, call, target.dtype)
                return

    @staticmethod
    def _scores_of(head: _Head, tensor: Any) -> _Scores | None:
        limit = _LIMITS[head.kind]
        if not is_readable(tensor) or not tensor.shape or tensor.shape[0] < _LEAST:
            return None
        kept = min(rows_that_fit(tensor.shape, tensor.nbytes), tensor.shape[0])
        values = array_of(tensor)
        if (
            kept < _LEAST
            or values is None
            or not (limit is not None or (values.ndim > 1 and values.shape[1] > 1))
        ):
            return None
        rows = _first_rows(tensor, kept)
        if rows is None:
            return None
        values = values[:kept]
        if limit is None:
            shape = (rows.shape[0], *rows.shape[2:])
            return _Scores(head, rows, values.argmax(axis=1), shape)
        return _Scores(head, rows, values > limit, rows.shape)

    def _keep_other(self, tensor: Any) -> None:
        if (
            is_readable(tensor)
            and len(tensor.shape) == 2
            and tensor.shape[0] >= _LEAST
            and tensor.shape[1] > 1
        ):
            values = array_of(tensor)
            if values is not None and (kept := rows_that_fit(tensor.shape, tensor.nbytes)) >= _LEAST:
                self._others.append(values[:kept].argmax(axis=1))

    def compared(self, one: Any, other: Any) -> None:
        """Called when two tensors were compared for equality."""
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return
        for scores in self._scores:
            if scores.labels is None and (self._shows(scores, one, other) or self._shows(scores, other, one)):
                return

    def _shows(self, scores: _Scores, answers: Any, labels: Any) -> bool:
        """Takes the labels, if `answers` are those of the scores."""
        rows = len(scores.answers)
        for tensor in (answers, labels):
            if not (is_readable(tensor) and tensor.dtype in _LABELS and tensor.shape):
                return False
            if tensor.shape[0] != scores.shape[0] or tensor.numel() != int(np.prod(scores.shape)):
                return False
        given = array_view(answers, _LABELS[answers.dtype])[:rows].reshape(rows, -1)
        if not np.array_equal(given, scores.answers.reshape(rows, -1)):
            return False
        shown = array_view(labels, _LABELS[labels.dtype])[:rows].reshape(rows, -1)
        others = [one.answers for one in self._scores if one is not scores] + list(self._others)
        if any(_agree(shown, answers) for answers in others):
            return False  # two models are compared, or two passes
        scores.labels = _first_rows(labels, rows)
        return scores.labels is not None

    def record(self, step: Step) -> None:
        """Records scores and labels at the end of a step, unless the step has called the loss."""
        if not self._scores:
            return
        scores, self._scores = self._scores, []
        compares.on = False
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None or not step.begun:
            return
        self._others.extend(one.answers for one in scores)
        for one in scores:
            kind, call = one.head.kind, one.head.call
            if one.labels is None or step.sampled_losses.get(kind, 0) > call:
                continue
            array = one.labels.array.reshape((-1, *one.shape[1:]))
            for index, rows in enumerate((one.rows, _Rows(one.labels.dtype, one.shape, array))):
                number = recorder.number(f"sample/{kind}_input_{2 * call + index}", _SAMPLE, "", kind)
                if not session.due_tensor(number):
                    continue
                strides = tuple(size // rows.array.itemsize for size in rows.array.strides)
                layout = recorder.layouts.find_rows(rows.dtype, rows.shape, strides, len(rows.array))
                if layout >= 0:
                    session.capture_one(number, layout, int(rows.array.__array_interface__["data"][0]))
