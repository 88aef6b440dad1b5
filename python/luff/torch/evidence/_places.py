"""Asks a model whether its answer for a sample depends on the sample's place in the batch.

A forked child gives a model with attention the same sample in all places of the batch: positions that are counted
along the batch give each place its own answer. Beside that it gives any model the batch in another order (`_orders`).
docs/adr/0010.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from luff.torch.capture._memory import is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._asked import ASK_AT, Asked, AskedOfCalls, reordered
from luff.torch.evidence._ignored_masks import Masked, mask_question
from luff.torch.evidence._orders import Order, order_question
from luff.torch.evidence._row_wise import ForwardPass

__all__ = ["Places", "evaluate", "of_each"]

_MOST_CALLS = 4  # of models in a step
_LEAST_ROWS, _MOST_ROWS = 8, 1 << 12
_ROWS = 64  # that the child gives to the models
_MOST_ARGUMENTS = 8
_FEW = (0, 1, 2, 3)  # places, of which none can be exchanged between the first and the last
_SAME, _APART = 1e-3, 1e-2  # of the outputs' spread: rounding, and more than that
_ATTENTION = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer,
)
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class _Question(NamedTuple):
    """A call of a model."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int


class Places(AskedOfCalls):
    """Looks for calls of models that can be asked, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("places", opened)
        self._passes: list[ForwardPass] = []  # one for each call

    def begins(self, step: int) -> None:
        """Called when a TRAIN step begins; steps are counted from the first of the process."""
        self._step = (
            step if step in ASK_AT and not self.asked else -1
        )  # as the base does, which would be a call more
        self._calls.clear()
        self._passes.clear()

    def model_called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers a model's call with gradients."""
        for (reference, _, _), one in zip(self._calls, self._passes, strict=False):
            if reference() is model:
                one.forget()
        if self._step >= 0 and len(self._calls) < _MOST_CALLS and torch.is_grad_enabled():
            self._passes.append(ForwardPass(args, kwargs))
            self._calls.append((weakref.ref(model), args, kwargs))

    def model_returned(self, model: Any, tensors: list[Any]) -> None:
        """Remembers the graph of what a call has returned."""
        if self._step >= 0 and self._passes and self._calls[-1][0]() is model:
            self._passes[-1].returned(tensors)

    def backward_begins(self, readable: bool = False) -> None:
        """Starts the child: the step is one of training. `readable`: the graph is there, and may be read."""
        passes = self._passes.copy()
        self._passes.clear()
        step, calls = self._take()
        questions = of_each(calls, _question)
        found = of_each(list(zip(passes, calls, strict=True)), _order_question)
        orders = [
            order for one, order in found if not (readable and one.is_row_wise(order.model, order.rows))
        ]
        masked = of_each(calls, mask_question)
        if questions or orders or masked:
            every: list[Any] = [*questions, *orders, *masked]
            self.ask(step, partial(evaluate, questions, orders, masked), [one.model for one in every])
        elif found:
            self.answered = True  # by the graph: each row of the answers is of its own sample alone


def _order_question(one: ForwardPass, call: Call) -> tuple[ForwardPass, Order] | None:
    order = order_question(*call)
    return None if order is None else (one, order)


def of_each(calls: Sequence[tuple[Any, ...]], question: Callable[..., Any]) -> list[Any]:
    """Returns what models are to be asked, without those whose arguments or weights have no sizes: nested tensors, lazy
    parameters.
    """
    found = []
    for call in calls:
        try:
            one = question(*call)
        except (RuntimeError, NotImplementedError, ValueError):
            continue
        if one is not None:
            found.append(one)
    return found


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    """Returns the arguments that are tensors, with their place or name."""
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return [(key, one) for key, one in given if isinstance(one, torch.Tensor)][:_MOST_ARGUMENTS]


def _question(reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Question | None:
    """Returns what a model is to be asked; None if nothing is."""
    model, given = reference(), _given(args, kwargs)
    if model is None or not given or not all(is_readable(tensor) for _, tensor in given):
        return None
    first = given[0][1]
    rows = int(first.shape[0]) if first.dim() else 0
    # Samples that are sequences.
    if not _LEAST_ROWS <= rows <= _MOST_ROWS or first.dim() != (3 if first.dtype.is_floating_point else 2):
        return None
    if first.shape[1] in (*_FEW, rows):
        return None
    # What holds several rows of each sample, as a mask for each head, cannot be repeated.
    others = [one for one in tensors_in([args, kwargs]) if not _has_rows(one, rows)]
    if any(size and size % rows == 0 for one in others for size in one.shape):
        return None
    # A table with a row for each sample: they are known by their places, as agents that are always the same.
    if any(_has_rows(one, rows) for one in (*model.parameters(), *model.buffers())):
        return None
    if not any(isinstance(module, _ATTENTION) for module in model.modules()):
        return None
    return _Question(model, args, kwargs, rows)


def _has_rows(tensor: Any, rows: int) -> bool:
    return bool(tensor.dim()) and tensor.shape[0] == rows


def evaluate(
    questions: list[_Question], orders: Sequence[Order] = (), masked: Sequence[Masked] = ()
) -> dict[str, Any] | None:
    """Asks the models, until one has something. Only for a forked child: modes, buffers and weights change."""
    found: dict[str, Any] | None = None
    first: list[Any] = [*orders, *masked]  # while weights are as they were
    for one in first:
        try:
            answer = one.evaluate()
        except Exception:  # no other order fits, e.g. of sorted lengths
            continue
        if answer and not (found and "of" in found and "of" in answer):
            found = {**(found or {}), **answer}
    for question in questions:
        if question.rows > _ROWS:
            few = torch.arange(_ROWS)
            args, kwargs = _ordered([question.args, question.kwargs], few, question.rows)
            question = question._replace(args=args, kwargs=kwargs, rows=_ROWS)
        try:
            answer = _places(question)
        except Exception:  # no other order fits, e.g. of sorted lengths
            continue
        if answer:
            found = {**(found or {}), "rows": question.rows, **answer}
            if "placed" in answer:
                break
    return found


def _places(question: _Question) -> dict[str, Any]:
    """Gives the same sample in all places of the batch, in evaluation mode. Only of a model whose answer for a sample
    does not depend on the others (along an axis of time, places matter), nor on the order within its sequence: one that
    tells those places apart may know its samples by their places on purpose, as sensors that are always the same.
    """
    model, args, kwargs, rows = question
    model.eval()

    def answer(order: list[int]) -> Any:
        given = _ordered([args, kwargs], torch.tensor(order), rows)
        with torch.no_grad():
            return _first(model(*given[0], **given[1]), rows)

    plain, alike, last = answer([*range(rows)]), answer([0] * rows), rows - 1
    if plain is None or alike is None or plain.shape != alike.shape:
        return {}
    if not bool(torch.isfinite(plain).all()) or not torch.equal(alike, answer([0] * rows)):
        return {}
    spread = float(plain.std())
    if not spread > 0 or not _ignores_order(plain, question, _SAME * spread):
        return {}
    one, other = answer([0, *range(2, rows), 1]), answer([*range(1, last), 0, last])
    across = max(float((one[0] - plain[0]).abs().max()), float((other[last] - plain[last]).abs().max()))
    if across > _SAME * spread:
        return {}
    # A model with memories of its own, or with halves of a batch that it treats each in its own way, has few answers.
    answers = int(torch.unique(torch.round(alike.flatten(1) / (_APART * spread)), dim=0).shape[0])
    apart = float((alike - alike[0]).abs().max()) / spread
    if not apart > _APART:
        return {"asked": True}
    _make_tables_even(model, rows)
    even = answer([0] * rows)
    if not float((even - even[0]).abs().max()) > _APART * spread:
        return {"asked": True}
    return {"placed": apart, "answers": answers}


def _make_tables_even(model: Any, rows: int) -> None:
    """Gives all rows of learnt tables the same values. Places that then have the same answer were told apart by what is
    learnt of each, as of the agents of a team, which may be meant; positions that are worked out remain.
    """
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, torch.nn.Embedding) and type(module).__module__.startswith("torch.nn."):
                continue
            for weight in module.parameters(recurse=False):
                for axis in range(weight.dim()):
                    if weight.shape[axis] >= rows:
                        weight.copy_(weight.narrow(axis, 0, 1).expand_as(weight).clone())


def _ignores_order(plain: Any, question: _Question, small: float) -> bool:
    """Whether the answers stay the same, or move with the places, when those between the first and the last of each
    sequence are turned round.
    """
    model, args, kwargs, rows = question
    length = int(_given(args, kwargs)[0][1].shape[1])
    order = torch.tensor([0, *range(length - 2, 0, -1), length - 1])

    def turned(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.index_select(1, order) if tuple(value.shape[:2]) == (rows, length) else value
        return value

    with torch.no_grad():
        given = [turned(one) for one in args]
        answer = _first(model(*given, **{name: turned(one) for name, one in kwargs.items()}), rows)
    if answer is None or answer.shape != plain.shape:
        return False
    moved = plain.index_select(1, order) if plain.dim() > 2 and plain.shape[1] == length else plain
    return float((answer - moved).abs().max()) <= small


def _ordered(value: Any, order: Any, rows: int) -> Any:
    return reordered(value, order, lambda one: 0 if _has_rows(one, rows) else None)


def _first(result: Any, rows: int) -> Any:
    """Returns the first result with a row for each sample; None if there is none."""
    if hasattr(result, "logits"):
        result = result.logits
    for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in([result]):
        if tensor.dtype.is_floating_point and _has_rows(tensor, rows):
            return tensor.double() if tensor.dim() > 1 else tensor.double()[:, None]
    return None
