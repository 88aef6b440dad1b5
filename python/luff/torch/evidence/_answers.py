"""Labels of evaluations that compute no loss: those that a model's answers are compared with.

An evaluation that only counts right answers takes the largest score of each row, and compares it with the labels. The
scores are known, since in training the same output of the same model went into a loss; a comparison of just these
answers shows the labels. Both become a sample of that loss, without a value.
"""

from __future__ import annotations

import json
import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from luff._codes import Mode, Role
from luff._rows import rows_that_fit
from luff._weak import Identities
from luff.torch.capture._memory import copy_of_rows, is_readable, numbers_in
from luff.torch.capture._modules import tensors_in
from luff.torch.capture._names import shapes_of
from luff.torch.evidence._batches import Batches, Place, same_values
from luff.torch.evidence._causal import Causal
from luff.torch.evidence._counted import counts_all
from luff.torch.evidence._places import Places
from luff.torch.evidence._step import Step, StepContext
from luff.torch.evidence._unused_passes import UnusedPasses
from luff.torch.evidence._written_likelihoods import Pair
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


#: Losses of numbers, whose outputs are the answers.
Link = Callable[[NDArray[Any]], NDArray[Any]]
_LINKED = 64  # rows of them that are compared with what the model returned
_AXES = 2  # of outputs of losses that a script writes
_ERRORS = frozenset(("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"))


class _Waits:
    on = False  # an evaluation's scores wait for a comparison


compares = _Waits()


def _as_it_is(output: NDArray[Any]) -> NDArray[Any]:
    return output


def _log_softmax(output: NDArray[Any]) -> NDArray[Any]:
    output = output.astype(np.float32)
    output = output - output.max(axis=-1, keepdims=True)
    logs: NDArray[Any] = output - np.log(np.exp(output).sum(axis=-1, keepdims=True))
    return logs


def _log(output: NDArray[Any]) -> NDArray[Any]:
    logs: NDArray[Any] = np.log(np.maximum(output, 1e-38)).astype(np.float32)
    return logs


def _sigmoid(output: NDArray[Any]) -> NDArray[Any]:
    shares: NDArray[Any] = (1.0 / (1.0 + np.exp(-output.astype(np.float32)))).astype(np.float32)
    return shares


_LINKS: tuple[Link, ...] = (_as_it_is, _log_softmax, _log, _sigmoid)


def _link_of(output: Any, given: Any) -> Link | None:
    """Returns how what a loss gets is made of the output of a model; None where that is not known."""
    if output is None or given is None or not output.size:
        return None
    rows = min(len(output), len(given), _LINKED)
    given = given[:rows].reshape(-1)
    with np.errstate(all="ignore"):
        for link in _LINKS:
            made = link(output[:rows]).reshape(-1)
            if made.size == given.size and np.allclose(made, given, rtol=1e-4, atol=1e-5):
                return link
    return None


@dataclass(slots=True)
class _Head:
    """An output of a model that goes into a loss in training."""

    kind: str
    call: int  # its place among the calls of its kind in a step
    place: Place  # of its targets in batches
    plain: bool  # the loss gets the output as it is, but for axes of length 1
    link: Link = _as_it_is  # what it gets, of the output
    shown: bool = False  # labels were compared with its answers
    counted: bool = False  # and all that are right were counted
    told: bool = False  # which was recorded
    looks: int = 2  # at the code that compares


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
    labels: _Rows | None = None  # what they were compared with
    given: _Rows | None = None  # what the loader gave with them


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


def _is_plain(one: Any, other: Any) -> bool:
    """Whether two views of the same values have the same axes, but for those of length 1."""
    axes = [[(n, k) for n, k in zip(t.shape, t.stride(), strict=True) if n != 1] for t in (one, other)]
    return axes[0] == axes[1]


class Answers:
    """Under the hook's lock and guard. Keeps the scores of one forward pass at a time, at most 8 x 64 KiB."""

    def __init__(
        self,
        context: StepContext,
        written: WrittenLosses,
        passes: UnusedPasses,
        causal: Causal,
        places: Places,
    ) -> None:
        self._context = context
        self._written = written
        self._passes = passes
        self._causal, self._places = causal, places
        self.batches = Batches()
        written.told = self.loss_written
        self._heads: Identities[dict[int, _Head]] = Identities()  # of a model, by place in its result
        #: Of a model that is not trained: the one that is, and whether both have parameters of the same shapes.
        self._copies: Identities[tuple[weakref.ref[Any], bool]] = Identities()
        #: The model called last in training, and what it returned, with its shape.
        self._trained: tuple[Any, list[tuple[Any, tuple[int, ...]]]] | None = None
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
            if self._causal.due:
                self._causal.model_returned(module, tensors)
                if torch.is_grad_enabled():
                    self._places.model_returned(module, tensors)
            if torch.is_grad_enabled():
                self._trained = weakref.ref(module), [(weakref.ref(one), tuple(one.shape)) for one in tensors]
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
            if head is not None and head.link is not _as_it_is:
                with np.errstate(all="ignore"):
                    words = np.ascontiguousarray(head.link(rows.numbers))
                rows = _Rows(torch.float32, rows.shape, words, words)
            limit = None if head is None else _LIMITS.get(head.kind)
            if head is not None and (limit is not None or head.kind in _ERRORS):
                answers = rows.numbers if limit is None else rows.numbers > limit
                self._scores.append(_Scores(head, rows, answers, rows.shape))
            elif head is not None and _has_classes(rows):
                shape = (rows.shape[0], *rows.shape[2:])
                self._scores.append(_Scores(head, rows, rows.numbers.argmax(axis=1), shape))
            elif head is None and _has_classes(rows) and len(rows.shape) == 2:
                self._others.append((self._evaluation, rows.numbers.argmax(axis=1)))
        for scores in self._scores:
            scores.given = self._given(scores)
        compares.on = any(scores.head.kind not in _ERRORS for scores in self._scores)

    def _heads_of_a_copy(self, module: Any) -> dict[int, _Head]:
        """Returns the outputs of the model that is trained, if `module` has its shapes: a copy, or an average."""
        trained = None if self._trained is None else self._trained[0]()
        if trained is None or trained is module or (heads := self._heads.get(trained)) is None:
            return {}
        known = self._copies.get(module)
        if known is None or known[0]() is not trained:
            known = self._copies[module] = weakref.ref(trained), shapes_of(module) == shapes_of(trained)
        return heads if known[1] else {}

    def _given(self, scores: _Scores) -> _Rows | None:
        """Returns the labels that the loader gave with what the model was asked, as far as there are answers."""
        if not scores.head.plain:
            return None
        labels = self.batches.labels(scores.head.place, scores.shape[0])
        if labels is None or labels.numel() != math.prod(scores.shape):
            return None
        return _first_rows(labels, len(scores.answers))

    def loss_called(self, kind: str, call: int, output: Any, target: Any) -> None:
        """Called when a loss of targets was called in training with this output of a model."""
        if (kind not in _LIMITS and kind not in _ERRORS) or self._trained is None:
            return
        module, outputs = self._trained[0](), self._trained[1]
        if module is None:
            return
        for place, (reference, _) in enumerate(outputs):
            if same_values(reference(), output):
                head = self._head(module, place, kind, call, _is_plain(reference(), output))
                self.batches.trained(head.place, target)
                return

    def loss_written(self, kind: str, call: int, pair: Pair, shape: tuple[int, ...], output: Any) -> None:
        """Called when the graph has shown a loss that the script writes itself: its output and target, and the shape
        and first rows of the only result of a model in the step.
        """
        module = None if self._trained is None else self._trained[0]()
        if module is None or self._trained is None or not (kind in _LIMITS or kind in _ERRORS):
            return
        same = [place for place, (_, one) in enumerate(self._trained[1]) if one == shape]
        link = _link_of(output, numbers_in(pair.output, pair.dtype))
        if len(same) == 1 and link is not None and len(shape) <= _AXES:
            head = self._head(module, same[0], kind, call, True, link)
            of_classes = not pair.target_dtype.is_floating_point
            self.batches.found(head.place, pair.target_shape, pair.target, of_classes)

    def _head(
        self, module: Any, place: int, kind: str, call: int, plain: bool, link: Link = _as_it_is
    ) -> _Head:
        heads = self._heads.get(module)
        if heads is None:
            heads = self._heads[module] = {}
        known = heads.get(place)
        if known is None or (known.kind, known.call, known.link) != (kind, call, link):
            known = heads[place] = _Head(kind, call, Place(), plain, link)
        Batches.on = True
        return known

    def compared(self, one: Any, other: Any, equal: FrameType | None = None) -> None:
        """Called when two tensors are compared. `equal`: the frame that asks whether they are equal."""
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return
        for scores in self._scores:
            if scores.head.kind in _ERRORS:
                continue
            if scores.labels is None and (self._shows(scores, one, other) or self._shows(scores, other, one)):
                if scores.head.looks and not scores.head.counted:
                    scores.head.looks -= 1
                    scores.head.counted = counts_all(equal)
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
        classes = [one for one in scores if one.head.kind not in _ERRORS]
        self._others.extend((self._evaluation, one.answers) for one in classes)
        for one in scores:
            kind, call = one.head.kind, one.head.call
            shown = one.labels or one.given
            if shown is None or step.sampled_losses.get(kind, 0) > call:
                continue
            if one.head.counted and not one.head.told:
                one.head.told = True
                session.event_json(json.dumps({"kind": "answers_counted", "loss": kind, "call": call}))
            labels = shown.words.reshape((-1, *one.shape[1:]))  # as the training has them
            for index, (dtype, shape, words) in enumerate(
                ((one.rows.dtype, one.rows.shape, one.rows.words), (shown.dtype, one.shape, labels))
            ):
                number = recorder.number(f"sample/{kind}_input_{2 * call + index}", _SAMPLE, "", kind)
                if not session.due_tensor(number):
                    continue
                strides = tuple(size // words.itemsize for size in words.strides)
                layout = recorder.layouts.find_rows(dtype, shape, strides, len(words))
                if layout >= 0:
                    session.capture_one(number, layout, int(words.__array_interface__["data"][0]))
