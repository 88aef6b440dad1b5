"""Asks a model whether it uses each of its arguments, and whether its answer for a sample depends on the sample's place
in the batch.

A forked child gives the rows of one argument to other samples: a model that uses it then gives other answers, with
other weights at the latest, since a gate may still be closed. And it gives a model with attention the same sample
in all places of the batch: positions that are counted along the batch give each place its own answer. docs/adr/0010.
"""

from __future__ import annotations

import inspect
import weakref
from functools import partial
from typing import Any, NamedTuple

import torch

from luff.torch.capture._memory import is_readable
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence._asked import ASK_AT, Asked

__all__ = ["Inputs", "evaluate"]

_MOST_CALLS = 4  # of models in a step
_LEAST_ROWS, _MOST_ROWS = 8, 1 << 12
_ROWS = 64  # that the child gives to the models
_MOST_ARGUMENTS = 8
_FEW = (0, 1, 2, 3)  # places, of which none can be exchanged between the first and the last
_MOST_NAME = 64
_SAME, _APART = 1e-3, 1e-2  # of the outputs' spread: rounding, and more than that
_MOST_BYTES = 64 << 20  # of weights that the child changes, and so copies
_NOISE = 0.05  # added to weights, where they do not vary
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
    several: bool  # arguments with a row for each sample
    placed: bool  # samples may be told from each other by their places


class Inputs(Asked):
    """Looks for calls of models that can be asked, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("inputs", opened)
        self._step = -1
        self._calls: list[Call] = []

    def begins(self, step: int) -> None:
        """Called when a TRAIN step begins; steps are counted from the first of the process.

        Arguments are asked about twice: a stage of the training may begin to use one.
        """
        self._step = step if step in ASK_AT else -1
        self._calls.clear()

    @property
    def due(self) -> bool:
        """Whether calls of models are looked at."""
        return self._step >= 0

    def model_called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers a model's call with gradients."""
        if self._step >= 0 and len(self._calls) < _MOST_CALLS and torch.is_grad_enabled():
            self._calls.append((weakref.ref(model), args, kwargs))

    def backward_begins(self) -> None:
        """Starts the child: the step is one of training."""
        step, calls = self._step, self._calls.copy()
        self._step = -1
        self._calls.clear()
        places = not self.asked
        questions = [question for call in calls if (question := _question(*call, places)) is not None]
        if questions:
            self.ask(step, partial(evaluate, questions), [question.model for question in questions])


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    """Returns the arguments that are tensors, with their place or name."""
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return [(key, one) for key, one in given if isinstance(one, torch.Tensor)][:_MOST_ARGUMENTS]


def _question(
    reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any], places: bool
) -> _Question | None:
    """Returns what a model is to be asked; None if nothing is. `places`: about places of the batch, too."""
    model, given = reference(), _given(args, kwargs)
    if model is None or not given or not all(is_readable(tensor) for _, tensor in given):
        return None
    first = given[0][1]
    rows = int(first.shape[0]) if first.dim() else 0
    if not _LEAST_ROWS <= rows <= _MOST_ROWS:
        return None
    several = sum(_has_rows(tensor, rows) for _, tensor in given) > 1 and (
        sum(weight.nbytes for weight in model.parameters()) <= _MOST_BYTES
    )
    # Samples that are sequences. What holds several rows of each sample, as a mask for each head, cannot be repeated.
    sequences = first.dim() == (3 if first.dtype.is_floating_point else 2) and first.shape[1] not in (
        *_FEW,
        rows,
    )
    others = [one for one in tensors_in([args, kwargs]) if not _has_rows(one, rows)]
    placed = (
        places
        and sequences
        and not any(size and size % rows == 0 for one in others for size in one.shape)
        # A table with a row for each sample: they are known by their places, as agents that are always the same.
        and not any(_has_rows(one, rows) for one in (*model.parameters(), *model.buffers()))
        and any(isinstance(module, _ATTENTION) for module in model.modules())
    )
    return _Question(model, args, kwargs, rows, several, placed) if several or placed else None


def _has_rows(tensor: Any, rows: int) -> bool:
    return bool(tensor.dim()) and tensor.shape[0] == rows


def evaluate(questions: list[_Question]) -> dict[str, Any] | None:
    """Asks the models, until one has something. Only for a forked child: modes, buffers and weights change."""
    found: dict[str, Any] | None = None
    for question in questions:
        if question.rows > _ROWS:
            few = torch.arange(_ROWS)
            args, kwargs = _ordered([question.args, question.kwargs], few, question.rows)
            question = question._replace(args=args, kwargs=kwargs, rows=_ROWS)
        answer: dict[str, Any] = {"rows": question.rows}
        training = question.model.training
        for ask in (_places, _unused):
            try:
                answer |= ask(question)
            except Exception:  # no other order fits, e.g. of sorted lengths
                continue
            finally:
                question.model.train(training)
        if "unused" in answer or "placed" in answer:
            return answer
        if len(answer) > 1:
            found = answer
    return found


def _places(question: _Question) -> dict[str, Any]:
    """Gives the same sample in all places of the batch, in evaluation mode. Only of a model whose answer for a sample
    does not depend on the others (along an axis of time, places matter), nor on the order within its sequence: one that
    tells those places apart may know its samples by their places on purpose, as sensors that are always the same.
    """
    if not question.placed:
        return {}
    model, args, kwargs, rows = question[:4]
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
    return {"placed": apart, "answers": answers} if apart > _APART else {"asked": True}


def _ignores_order(plain: Any, question: _Question, small: float) -> bool:
    """Whether the answers stay the same, or move with the places, when those between the first and the last of each
    sequence are turned round.
    """
    model, args, kwargs, rows = question[:4]
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


def _unused(question: _Question) -> dict[str, Any]:
    """Gives the rows of one argument to other samples, in both modes, with the model's weights and with others."""
    if not question.several:
        return {}
    model, args, kwargs, rows = question[:4]
    layers = _Layers(model)
    left = {
        key: tensor
        for key, tensor in _given(args, kwargs)
        if _has_rows(tensor, rows) and _tells(tensor, rows) and not _are_lengths(tensor, args, kwargs)
    }
    names = _names(model, args)
    training = model.training
    for noisy in (False, True):
        if noisy:
            _change_weights(model)
        for mode in (training, not training):
            model.train(mode)

            def answers(key: int | str | None = None) -> list[Any]:
                given = [
                    one.roll(1, 0) if place == key and isinstance(one, torch.Tensor) else one
                    for place, one in enumerate(args)
                ]
                named = {
                    name: one.roll(1, 0) if name == key and isinstance(one, torch.Tensor) else one
                    for name, one in kwargs.items()
                }
                torch.manual_seed(0)
                with torch.no_grad():
                    result = model(*given, **named)
                return [one.detach().clone() for one in (*tensors_in([result]), *_kept(model))]

            plain, seen = answers(), layers.take()
            if not plain or not _same(plain, answers()) or layers.take().keys() != seen.keys():
                return {}
            left = {
                key: tensor
                for key, tensor in left.items()
                if _same(plain, answers(key)) and layers.differ(seen, layers.take())
            }
            if not left:
                return {"asked": True}
    return {
        "unused": [names.get(key, str(key))[:_MOST_NAME] for key in left],
        "model": type(model).__name__[:_MOST_NAME],
    }


class _Layers:
    """What layers with weights are given in a pass: by what is computed from an argument and not used, it is known as a
    mistake. An argument that no layer is given may belong to a signature that several models share.
    """

    def __init__(self, model: Any) -> None:
        self._given: dict[int, list[Any]] = {}
        for place, module in enumerate(model.modules()):
            if module is not model and any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(partial(self._note, place), with_kwargs=True)

    def _note(self, place: int, _: Any, args: Any, kwargs: Any) -> None:
        self._given.setdefault(place, []).extend(one.detach().clone() for one in tensors_in([args, kwargs]))

    def take(self) -> dict[int, list[Any]]:
        """Returns what the layers were given since the last call."""
        given, self._given = self._given, {}
        return given

    @staticmethod
    def differ(one: dict[int, list[Any]], other: dict[int, list[Any]]) -> bool:
        """Whether a layer was given something else."""
        return one.keys() != other.keys() or not all(_same(one[key], other[key]) for key in one)


def _kept(model: Any) -> list[Any]:
    """Returns the tensors that a pass leaves on the modules, as a loss; parameters and buffers aside."""
    return [
        tensor
        for module in model.modules()
        for name, value in list(vars(module).items())
        if not name.startswith("_") and isinstance(value, torch.Tensor | tuple | list | dict)
        for tensor in tensors_in(value)
    ]


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _tells(tensor: Any, rows: int) -> bool:
    """Whether an argument differs from row to row, and does not only number the rows."""
    if torch.equal(tensor, tensor.roll(1, 0)):
        return False
    numbers = tensor.dim() == 1 and not tensor.dtype.is_floating_point
    return not (numbers and int(torch.unique(tensor).numel()) == rows)


def _are_lengths(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether whole numbers are the lengths of rows that are padded to the longest: a mask may say the same."""
    if tensor.dim() != 1 or tensor.dtype.is_floating_point or int(tensor.min()) < 1:
        return False
    longest = int(tensor.max())
    return any(one.dim() > 1 and longest in one.shape[1:] for _, one in _given(args, kwargs))


def _change_weights(model: Any) -> None:
    """Adds noise to all weights, so that nothing is exactly 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dtype.is_floating_point and weight.numel():
                spread = float(weight.float().std(unbiased=False))
                weight.add_(torch.randn_like(weight) * (spread if spread > 0 else _NOISE))


def _names(model: Any, args: tuple[Any, ...]) -> dict[int | str, str]:
    """Returns the names of the arguments that were given by their place."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return {}
    return dict(zip(range(len(args)), names, strict=False))


def _ordered(value: Any, order: Any, rows: int) -> Any:
    """Returns arguments with the given samples, in this order."""
    if isinstance(value, torch.Tensor):
        return value.index_select(0, order) if _has_rows(value, rows) else value
    if type(value) in (list, tuple):
        return type(value)(_ordered(item, order, rows) for item in value)
    if type(value) is dict:
        return {key: _ordered(item, order, rows) for key, item in value.items()}
    return value


def _first(result: Any, rows: int) -> Any:
    """Returns the first result with a row for each sample; None if there is none."""
    if hasattr(result, "logits"):
        result = result.logits
    for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in([result]):
        if tensor.dtype.is_floating_point and _has_rows(tensor, rows):
            return tensor.double() if tensor.dim() > 1 else tensor.double()[:, None]
    return None
