"""Asks a model of padded sequences whether its answer for a row depends on how far the row was padded.

Rows of ids that end in runs of one id, of unlike length, are padded to the longest of their batch. A forked child gives
the model such rows alone, cut to their own length, in evaluation mode: a mean over all places, or the last state of a
recurrent network, then gives another answer. docs/adr/0010.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.conv import _ConvNd

from luff._hook import Session
from luff.torch.capture._memory import INTEGERS, address_of, array_view, is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._asked import Asked, AskedOfCalls
from luff.torch.evidence._padded_attention import turned_masks

__all__ = ["Padding", "evaluate", "lengths_of"]

_MOST_CALLS = 4  # of models in a step
_LEAST_ROWS, _LEAST_LENGTH = 4, 4
_MOST_IDS = 1 << 16  # of an argument that is read
_ROWS = 8  # that the child evaluates alone
_SAME = 1e-3  # of the outputs' spread: more than rounding
_KINDS = (torch.int64, torch.int32)
Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


class _Question(NamedTuple):
    """A model, its arguments, and the lengths of their rows without padding."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, int]
    lengths: list[int]


class Padding(AskedOfCalls):
    """Looks for padded rows of ids, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("padding", opened)
        self._turned = ""  # the event, as JSON

    def model_called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers a model's call with rows of ids."""
        if self._step < 0 or len(self._calls) >= _MOST_CALLS:
            return
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            if tensor.dtype in _KINDS and tensor.dim() == 2 and is_readable(tensor):
                if tensor.shape[0] >= _LEAST_ROWS and tensor.shape[1] >= _LEAST_LENGTH:
                    self._calls.append((weakref.ref(model), args, kwargs, tensor))
                    return

    def backward_begins(self, nodes: Iterable[Any] = ()) -> None:
        """Starts the child: the step is one of training. `nodes` are those of its graph, if they can be read."""
        step, calls = self._take()
        asked = []
        for reference, args, kwargs, ids in calls:
            model = reference()
            lengths = None if model is None else _lengths(model, ids)
            if lengths is None:
                continue
            shape = int(ids.shape[0]), int(ids.shape[1])
            layers = turned_masks(nodes, lengths, shape[1])
            if layers:
                rows = sum(length < shape[1] for length in lengths)
                event = {"kind": "padded_attention", "step": step, "layers": layers, "rows": rows}
                self._turned = json.dumps(event)
                self.opens()
            # What a convolution gives at the end of a row depends on what follows.
            if not any(isinstance(one, _ConvNd) for one in model.modules()):
                asked.append(_Question(model, args, kwargs, shape, lengths))
        if asked:
            self.ask(step, partial(evaluate, asked), [question.model for question in asked])

    def record(self, session: Session, until: float = 0.0) -> None:
        """Records what the graph showed, and the answer if it has arrived; waits at most until then (monotonic)."""
        turned, self._turned = self._turned, ""
        if turned:
            session.event_json(turned)
        super().record(session, until)


def _lengths(model: Any, ids: Any) -> list[int] | None:
    """Returns the rows' lengths without padding; None if they are not padded."""
    if ids.numel() > _MOST_IDS or not is_readable(ids) or not address_of(ids):  # it may have moved since
        return None
    known = {0}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            known.add(module.padding_idx)
    values = array_view(ids, INTEGERS[ids.dtype])
    for padding in sorted(known):
        lengths = lengths_of(values, padding)
        if lengths is not None:
            return lengths
    return None


def lengths_of(ids: NDArray[Any], padding: int) -> list[int] | None:
    """Returns how many places of each row come before its padding; None if the id stands anywhere else, or a quarter of
    the rows at least are not padded by two places or more.
    """
    is_padding = ids == padding
    lengths = ids.shape[1] - is_padding.sum(axis=1)
    trailing = np.arange(ids.shape[1]) >= lengths[:, None]
    if not np.array_equal(is_padding, trailing) or lengths.min() < 1:
        return None
    padded = int((lengths <= ids.shape[1] - 2).sum())
    if 4 * padded < len(lengths) or len(np.unique(lengths)) < 2:
        return None
    return [int(length) for length in lengths]


def _ends(given: Any, shape: tuple[int, int], lengths: list[int]) -> list[int]:
    """Returns behind which place of each row all tensors with a value for each place of it are padded; the width of a
    row where that is not known. Another text of the row may be longer, and a number for each place is not its own.
    """
    rows, width = shape
    ends = torch.tensor(lengths)
    places = torch.arange(1, width + 1)
    for tensor in tensors_in(given):
        if tensor.dim() < 2 or tuple(tensor.shape[:2]) != shape:
            continue
        values = tensor.detach().reshape(rows, width, -1)
        last_values, counts = values[:, -1].unique(dim=0, return_counts=True)
        filled = (values != last_values[counts.argmax()]).any(2)  # most rows end with what is padded with
        last = (filled * places).amax(1)
        if not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool:
            # An id that stands between others, or at the end of a row by chance, is no padding.
            between = not torch.equal(filled, places <= last[:, None])
            if between or (last == width).all():
                last = torch.full((rows,), width)
        ends = torch.maximum(ends, last)
    return [int(end) for end in ends]


def _cut(value: Any, shape: tuple[int, int], row: int, length: int) -> Any:
    """Returns arguments of one row of the batch, cut to its length."""
    if isinstance(value, torch.Tensor):
        if not value.dim() or value.shape[0] != shape[0]:
            return value
        value = value.narrow(0, row, 1)
        return value.narrow(1, 0, length) if value.dim() > 1 and value.shape[1] == shape[1] else value
    if type(value) in (list, tuple):
        return type(value)(_cut(item, shape, row, length) for item in value)
    if type(value) is dict:
        return {key: _cut(item, shape, row, length) for key, item in value.items()}
    return value


def _answer(result: Any, rows: int) -> Any:
    """Returns the first result with one number, or one row of numbers, for each row; None if there is none."""
    if hasattr(result, "logits"):
        result = result.logits
    for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in((result,)):
        if tensor.dtype.is_floating_point and 1 <= tensor.dim() <= 2 and tensor.shape[0] == rows:
            return tensor.reshape(rows, -1).double()
    return None


def evaluate(questions: list[_Question]) -> dict[str, Any] | None:
    """Evaluates rows alone, without their padding. Only for a forked child: modes and buffers change."""
    for question in questions:
        try:
            answer = _of_one(question)
        except Exception:  # no other length fits
            continue
        if answer is not None:
            return answer
    return None


def _of_one(question: _Question) -> dict[str, Any] | None:
    model, args, kwargs, (rows, width), lengths = question
    model.eval()

    def alone(row: int, length: int) -> Any:
        given = _cut([args, kwargs], (rows, width), row, length)
        with torch.no_grad():
            return _answer(model(*given[0], **given[1]), 1)

    def together() -> Any:
        with torch.no_grad():
            return _answer(model(*args, **kwargs), rows)

    plain = together()
    if plain is None or plain.shape[1] == width or not bool(torch.isfinite(plain).all()):
        return None
    spread = float(plain.std(0).max())
    if not spread > 0 or not torch.equal(plain, together()):
        return None
    lengths = _ends([args, kwargs], (rows, width), lengths)
    shortest = sorted(range(rows), key=lambda row: lengths[row])[:_ROWS]
    changes = []
    for row in shortest:
        if lengths[row] > width - 2:
            continue
        whole, short = alone(row, width), alone(row, lengths[row])
        if whole is None or short is None or whole.shape != short.shape:
            return None
        if float((whole[0] - plain[row]).abs().max()) > _SAME * spread:
            return None  # the other rows matter otherwise
        changes.append(float((short[0] - plain[row]).abs().max()) / spread)
    if not changes:
        return None
    changes.sort()
    return {
        "rows": len(changes),
        "length": width,
        "shortest": min(lengths),
        "change": changes[len(changes) // 2],
        "least": changes[0],
    }
