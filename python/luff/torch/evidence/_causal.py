"""Detects a model that predicts the next token but can see it, by evaluating it in a forked child.

If the targets of a loss are the ids that a model gets, shifted by one place, the model predicts next tokens. Its
outputs up to a place must then not depend on later tokens. If the targets are these ids themselves, a model that sees
no later tokens has nothing to predict. A decoder gets ids beside those of its source: each argument is compared. In
neither case may the outputs of a row depend on other rows. The child evaluates the model on a few rows, in evaluation
mode and without gradients, with other tokens, and compares. Of a model that computes its loss itself it takes what the
loss gets. The training process forks and continues. docs/adr/0010.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.capture._memory import address_of, array_view, is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._asked import ASK_AT, Asked

__all__ = ["Causal", "cuts", "evaluate", "matched"]

_MOST_CALLS, _MOST_IDS = 4, 4  # calls of models in a step, and arguments of one, that are remembered
_LENGTH = 4  # fewest tokens in a row
_READ = 1 << 16  # tokens compared with targets
_ROWS = 2  # rows of the batch that the child evaluates
_SEEN = 1e-4  # relative to the outputs' spread: more than rounding
_BEHIND = 32  # nodes between a loss's input and what a model has returned
_CUT_BEHIND, _CUT = (
    256,
    2,
)  # nodes behind a loss's input among which cuts are sought; most places that one leaves out
_MOST_CUTS = 4
#: Operations that give a loss what a model has returned: another form of it, a part, or its probabilities.
_PASSING = frozenset(
    (
        *("View", "UnsafeView", "ReshapeAlias", "Alias", "Squeeze", "Unsqueeze", "Expand", "AsStrided"),
        *("Transpose", "Permute", "T", "Slice", "Select", "Narrow", "Index", "IndexSelect", "MaskedSelect"),
        *("Clone", "ToCopy", "Mul", "Div", "Add", "MaskedFill", "Softmax", "LogSoftmax", "Log"),
    )
)
_LOSSES = ("cross_entropy", "nll_loss")
_KINDS = {torch.int64: np.int64, torch.int32: np.int32}
Ids = NDArray[Any]
_Match = tuple[Any, tuple[int, Ids, bool]]  # ids, and what `matched` says of them


@dataclass(slots=True)
class _Call:
    """A model's call with ids."""

    model: Any  # weak reference
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: list[Any]  # arguments that hold ids
    results: list[Any] | None = None  # nodes that made what it returned; None while it runs
    inside: bool = False  # it calls the loss itself
    elsewhere: bool = False  # the loss gets what something else has made of what the call returned


class _Question(NamedTuple):
    """A call whose ids fit the targets, for the child."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    matches: list[_Match]
    inside: bool
    elsewhere: bool


class Causal(Asked):
    """Looks for models that see the next token, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("causal", opened)
        self._due = False  # calls of a process that only evaluates are not kept
        self._step = -1
        self._calls: list[_Call] = []
        self._found: list[tuple[_Call, list[_Match]]] = []

    def begins(self, step: int) -> None:
        """Called when a TRAIN step begins, up to the first after the last of ASK_AT."""
        self._step = step
        self._found.clear()
        self._calls.clear()
        self._due = step in ASK_AT

    @property
    def due(self) -> bool:
        """Whether calls of models and losses are examined."""
        return self._due

    def model_called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers a model's call with ids."""
        if self._found or len(self._calls) >= _MOST_CALLS:
            return
        ids: list[Any] = []
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            if len(ids) < _MOST_IDS and tensor.dtype in _KINDS and tensor.dim() == 2:
                if min(tensor.shape) >= 1 and is_readable(tensor):
                    ids.append(tensor)
        if ids:
            self._calls.append(_Call(weakref.ref(model), args, kwargs, ids))

    def model_returned(self, model: Any, tensors: list[Any]) -> None:
        """Notes what a model's call has returned."""
        for call in self._calls:
            if call.results is None and call.model() is model:
                call.results = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]

    def loss_called(self, target: Any, output: Any = None, node: Any = None) -> None:
        """Compares a loss's target with the ids: it may be the ids shifted by one place.

        Parameters
        ----------
        output, node
            What the loss gets beside it; of a loss that only the graph shows, its node.
        """
        if self._found or not isinstance(target, torch.Tensor):
            return
        if target.dtype not in _KINDS or not is_readable(target):
            return
        for call in self._calls:
            found = [(given, match) for given in call.ids if (match := matched(given, target)) is not None]
            if found:
                self._place(call, output, node)
                self._found.append((call, found))

    @staticmethod
    def _place(call: _Call, output: Any, node: Any) -> None:
        """Notes whether the loss is part of the call, or gets something else than what the call has returned."""
        if not call.results:
            call.inside = call.results is None
            return
        if node is not None:
            call.inside = any(behind is node for behind in nodes_behind(call.results, _BEHIND))
        made_by = output.grad_fn if output is not None else node.next_functions[0][0]
        call.elsewhere = not (call.inside or _is_made_of(made_by, call.results))

    def backward_begins(self) -> None:
        """Starts the child: the step is one of training."""
        asked = [
            _Question(model, call.args, call.kwargs, matches, call.inside, call.elsewhere)
            for call, matches in self._found
            if (model := call.model()) is not None
        ]
        self._found.clear()
        self._calls.clear()
        self._due = False
        if asked:
            self.ask(self._step, partial(evaluate, asked), [question.model for question in asked])


def _is_made_of(made_by: Any, results: list[Any]) -> bool:
    """Whether the node that made what a loss gets has made what a model returned, or another form of it."""
    waiting, looked = [made_by], 0
    while waiting and looked < _BEHIND:
        node = waiting.pop()
        if node is None:
            continue
        if any(node is result for result in results):
            return True
        looked += 1
        if operation_of(node) in _PASSING:
            waiting.extend(following for following, _ in node.next_functions)
    return False


def cuts(target: Any, output: Any = None, node: Any = None) -> list[tuple[int, int, int]]:
    """Returns (start, places, of) of slices behind the input of a loss of ids that leave out a place or two of an axis.

    They tell which places of a model's outputs meet which targets. At most four, the nearest first. For the arguments,
    see `Causal.loss_called`.
    """
    found: list[tuple[int, int, int]] = []
    if not isinstance(target, torch.Tensor) or target.dtype not in _KINDS:
        return found
    made_by = output.grad_fn if output is not None else None if node is None else node.next_functions[0][0]
    for node in nodes_behind([made_by], _CUT_BEHIND) if made_by is not None else ():
        if operation_of(node) != "Slice":
            continue
        shape = node._saved_self_sym_sizes
        of = int(shape[min(node._saved_dim, len(shape) - 1)])
        # A negative end or start is kept as an unsigned number of 64 bits.
        start, end = (int(n) - (1 << 64 if n >> 63 else 0) for n in (node._saved_start, node._saved_end))
        start, end, step = slice(start, end, int(node._saved_step)).indices(of)
        cut = (start, end - start, of)
        if step == 1 and 0 < of - cut[1] <= _CUT and cut not in found:
            found.append(cut)
            if len(found) >= _MOST_CUTS:
                break
    return found


def _ids(tensor: Any) -> Ids | None:
    """Returns the memory of ids as an array; None if there is none, or it has moved to an accelerator since."""
    if not is_readable(tensor) or not address_of(tensor) or not tensor.numel():
        return None
    return array_view(tensor, _KINDS[tensor.dtype])


def matched(given: Any, target: Any) -> tuple[int, Ids, bool] | None:
    """Returns the time axis and the places that count, if targets are the input shifted by one place, or the input.

    Parameters
    ----------
    given, target
        Tensors of ids: (rows, time) or (time, rows), and targets of any shape with as many elements, or with one
        place less in each row. A loss ignores negative targets.

    Returns
    -------
    tuple or None
        Time axis, a mask (rows, time) of the places whose target is the next token (or the token itself) and counts,
        and whether it is the token itself.
    """
    x, y = _ids(given), _ids(target)
    if x is None or y is None:
        return None
    for axis in (1, 0):
        rows = x if axis == 1 else x.T
        count, length = rows.shape
        if length < _LENGTH:
            continue
        for width in (length, length - 1):
            if y.size != count * width:
                continue
            places = y.reshape(count, width) if axis == 1 else y.reshape(width, count).T
            some = max(_READ // length, 1)
            now, then, wanted = rows[:some, :-1], rows[:some, 1:], places[:some, : length - 1]
            counts = wanted >= 0
            right = wanted == then
            # Only padding may have another id among the targets.
            if not counts.any() or not right[counts].mean() >= 0.999:
                continue
            if (now == then)[counts].mean() > 0.9 or np.unique(then[counts]).size < 4:
                continue  # the targets equal the input itself
            mask = np.zeros((count, length), bool)
            mask[:some, : length - 1] = counts & right
            return axis, mask, False
        if y.size == x.size:
            places = y.reshape(count, length) if axis == 1 else y.reshape(length, count).T
            counts = places >= 0
            # Of masked tokens, only some keep their id in the input; padding counts nowhere.
            if counts.mean() > 0.5 and (places == rows)[counts].mean() >= 0.999 and np.unique(rows).size >= 4:
                if (rows[:, :-1] == rows[:, 1:]).mean() <= 0.9:
                    return axis, counts, True
    return None


def _replaced(value: Any, old: Any, new: Any, rows: int | None, count: int, axis: int) -> Any:
    """Returns arguments with one tensor replaced, keeping only the first rows of tensors that have `count` rows."""
    if value is old:
        return new
    if isinstance(value, torch.Tensor):
        if rows is not None and value.dim() > axis and value.shape[axis] == count:
            return value.narrow(axis, 0, rows)
        return value
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, old, new, rows, count, axis) for item in value)
    if type(value) is dict:
        return {key: _replaced(item, old, new, rows, count, axis) for key, item in value.items()}
    return value


class _LossInputs(TorchFunctionMode):
    """Keeps what the losses that are called get."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _LOSSES:
            self.given.append(args[0] if args else kwargs.get("input"))
        return func(*args, **kwargs)


def _of_losses(given: list[Any], count: int, length: int, axis: int) -> Any:
    """Returns what one of the losses got, as `_scores`: the last place may be left out, since nothing follows it."""
    for width in (length, length - 1):
        scores = _scores(given, count, width, axis)
        if scores is not None:
            return scores
    return None


def _scores(result: Any, count: int, length: int, axis: int) -> Any:
    """Returns outputs as (rows, time, classes) in float64; None if there are none of that form."""
    if hasattr(result, "logits"):
        result = result.logits
    for tensor in tensors_in((result,)) if not isinstance(result, torch.Tensor) else (result,):
        if not tensor.dtype.is_floating_point or tensor.numel() < 2 * count * length:
            continue
        shape = tuple(tensor.shape)
        order = (count, length) if axis == 1 else (length, count)
        if shape[0] == count * length:
            tensor = tensor.reshape(*order, -1)
        elif shape[:2] != order:
            if len(shape) == 3 and (shape[0], shape[2]) == order:
                tensor = tensor.transpose(1, 2)
            else:
                continue
        tensor = tensor.reshape(*order, -1)
        return (tensor if axis == 1 else tensor.transpose(0, 1)).double()
    return None


def evaluate(questions: list[_Question]) -> dict[str, Any] | None:
    """Evaluates models with other tokens after a place. Only for a forked child: modes and buffers change.

    Of several arguments that fit the targets, of one call or of several, that one tells which the model sees the least
    of: an autoencoder knows its source, which an encoder of its own may read, and labels may be passed along.
    """
    answers, error = [], None
    for question in questions:
        question.model.eval()
        for match in question.matches:
            try:
                answer = _of_one(question, *match)
            except Exception as raised:
                error = raised
                continue
            if answer is not None:
                answers.append(answer)
    if error is not None and not answers:
        raise error
    return min(
        answers, key=lambda answer: (answer["copied"], answer["elsewhere"], answer["change"]), default=None
    )


def _of_one(question: _Question, given: Any, match: tuple[int, Ids, bool]) -> dict[str, Any] | None:
    model, args, kwargs, _, inside, elsewhere = question
    axis, mask, copied = match
    batch = 0 if axis == 1 else 1
    count, length = mask.shape
    for rows in (min(_ROWS, count), None):
        taken = count if rows is None else rows
        ids = given.detach().clone().narrow(batch, 0, taken)
        counts = torch.from_numpy(mask[:taken])

        def outputs(changed: Any, rows: int | None = rows, taken: int = taken) -> Any:
            new_args = _replaced(args, given, changed, rows, count, batch)
            new_kwargs = _replaced(kwargs, given, changed, rows, count, batch)
            with torch.no_grad():
                if not inside:
                    return _scores(model(*new_args, **new_kwargs), taken, length, axis)
                with _LossInputs() as losses:
                    result = model(*new_args, **new_kwargs)
                scores = _of_losses(losses.given, taken, length, axis)
                return _scores(result, taken, length, axis) if scores is None else scores

        try:
            answer = _compared(outputs, ids, counts, length, axis, copied)
            return answer | {"copied": copied, "elsewhere": elsewhere} if answer else None
        except Exception:
            if rows is None or rows == count:
                raise
    return None


def _compared(
    outputs: Callable[[Any], Any], ids: Any, counts: Any, length: int, axis: int, copied: bool
) -> dict[str, Any] | None:
    known = torch.unique(ids)
    places = torch.nonzero(counts.any(0)).flatten()
    if known.numel() < 2 or places.numel() < 2:
        return None
    cut = int(places[(places.numel() - 1) // 2])  # outputs up to this place are compared

    def other(first: int, end: int, along: int = axis) -> Any:
        changed = ids.clone()
        part = changed.narrow(along, first, end - first)
        part.copy_(known[(torch.searchsorted(known, part.contiguous()) + 1) % known.numel()])
        return changed

    plain = outputs(ids.clone())
    if plain is None or not bool(torch.isfinite(plain).all()) or not torch.equal(plain, outputs(ids.clone())):
        return None
    spread = float(plain.std())
    own = (outputs(other(cut, cut + 1)) - plain)[:, cut].abs()
    itself = float(own.max())
    if spread == 0 or itself <= _SEEN * spread:
        return None  # the output does not depend on the input yet
    if copied and int((own > _SEEN * spread).sum(1).max()) <= 2:
        return None  # labels whose own score gets a margin: two scores change, and no token is read
    behind = (outputs(other(cut + 1, length)) - plain).abs().amax(2)[:, : cut + 1]
    behind = torch.where(counts[:, : cut + 1], behind, torch.zeros_like(behind))
    change = float(behind.max()) / spread
    before = (outputs(other(0, cut)) - plain)[:, cut].abs().amax() if cut else 0.0
    across, rows = 0.0, ids.shape[1 - axis]
    for row, first, end in ((0, 1, rows), (rows - 1, 0, rows - 1)) if rows > 1 else ():
        changed = outputs(other(first, end, 1 - axis))
        across = max(across, float((changed - plain)[row].abs().max()) / spread)
    return {
        "length": length,
        "place": cut,
        "rows": int(ids.numel() // length),
        "change": change,
        "itself": itself / spread,
        "places": int((behind.amax(0) > _SEEN * spread).sum()),
        "sees": change > _SEEN,
        "alone": float(before) <= _SEEN * spread,
        "across": across,
    }
