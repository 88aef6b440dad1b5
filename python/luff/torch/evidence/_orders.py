"""Asks a model whether its answer for a sample depends on the order of the batch.

Any model is asked whose graph does not rule it out (`_row_wise`), and any wrong axis is meant: edges of a graph
without the offsets of the batch, a running sum, a recurrence or attention along the samples, positions or a step of
time that are the first sample's. In evaluation mode the rows of a batch are given in another order; where the answers
do not move along, they are asked for what they depend on: the place alone, one sample that has a say in all answers,
or the samples beside them. Whether rows may stand in any order at all is known by the rule, which sees that they come
again in another one. docs/adr/0010.
"""

from __future__ import annotations

from typing import Any

import torch

from luff.torch.evidence._asked import reordered

__all__ = ["Order", "order_question"]

_LEAST_ROWS, _ROWS = 8, 16  # of a batch, and those that the child gives to the model
_SAME, _APART = 1e-3, 1e-2  # of the outputs' spread: rounding, and more than that
_NUDGE = 1e-3  # of the inputs' spread: too little for another choice, as of an expert
_NUDGED = 1e-6  # of the outputs' spread, and a thousandth of the largest change: more than rounding
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_MOST_HELD = 64  # attributes of a module that are looked at
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Order:
    """A call of a model, and which axis of its arguments holds the samples."""

    def __init__(self, model: Any, args: Any, kwargs: Any, rows: int) -> None:
        self.model, self.args, self.kwargs, self.rows, self.batch = model, args, kwargs, rows, rows
        self._each: bool | None = None  # whether there is an answer for each sample

    def evaluate(self) -> dict[str, Any] | None:
        """Asks the model. Only for a forked child: modes and buffers change."""
        if self.rows > _ROWS:
            self.args, self.kwargs = self._ordered([*range(_ROWS)])
            self.rows = _ROWS
        self.model.eval()
        return self._verdict()

    def _axis(self, tensor: Any) -> int | None:
        return next((axis for axis, size in enumerate(tensor.shape) if size == self.rows), None)

    def _ordered(self, order: list[int]) -> Any:
        return reordered([self.args, self.kwargs], torch.tensor(order), self._axis)

    def _result(self, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():
            result = self.model(*args, **kwargs)
        result = getattr(result, "logits", result)
        return result[0] if type(result) in (list, tuple) and result else result

    def _answers(self, order: list[int] | None = None, nudged: int | None = None) -> Any:
        """Returns an answer for each sample, as one row of numbers. `nudged`: a sample whose numbers are changed."""
        args, kwargs = (self.args, self.kwargs) if order is None else self._ordered(order)
        handles: list[Any] = []
        if nudged is not None:
            nudge = _Nudge(nudged, self.rows, self._axis)
            args, kwargs = nudge.of(args), nudge.of(kwargs)
            handles = [
                module.register_forward_hook(nudge.of_table)
                for module in self.model.modules()
                if isinstance(module, torch.nn.Embedding)
            ]
        tensor = self._result(args, kwargs)
        for handle in handles:
            handle.remove()
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            return None
        if not tensor.dim() or tensor.shape[0] != self.rows or not self._is_of_each(tensor):
            return None
        return tensor.double().reshape(self.rows, -1)

    def _is_of_each(self, tensor: Any) -> bool:
        """Whether there is an answer of one form for each sample, however many there are. One that has a number for
        each pair of them, as similarities, is narrower for fewer samples; a model whose rows have a structure, as
        groups or the nodes of one graph, takes no fewer (it raises).
        """
        if self._each is None:
            fewer = self._result(*self._ordered([*range(self.rows - 1)]))
            self._each = isinstance(fewer, torch.Tensor) and fewer.shape[1:] == tensor.shape[1:]
        return self._each

    def _verdict(self) -> dict[str, Any] | None:
        rows = self.rows
        plain = self._answers()
        if plain is None or not bool(torch.isfinite(plain).all()) or not torch.equal(plain, self._answers()):
            return None
        spread = float(plain.std())
        if not spread > 0:
            return None

        def far(one: Any, other: Any) -> Any:
            """How far the answers for each sample lie apart."""
            return (one - other).abs().amax(-1) / spread

        turned = [*range(rows - 1, -1, -1)]
        shuffled = [(5 * place + 3) % rows if rows % 5 else (3 * place + 1) % rows for place in range(rows)]
        orders = [turned] if len(set(shuffled)) < rows else [turned, shuffled]
        moved = [self._answers(order) for order in orders]
        if any(one is None or one.shape != plain.shape for one in moved):
            return None
        change = max(float(far(one, plain[order]).max()) for one, order in zip(moved, orders, strict=True))
        if not change > _APART:
            return {"asked": True}
        found = {"of": "", "change": change, "order_rows": rows, "batch": self.batch}
        # Each sample in all places: what the answers are if nothing but the sample and its place matters.
        alike = torch.stack([self._answers([row] * rows) for row in range(rows)])  # (sample, place, numbers)
        places = torch.arange(rows)
        by_place = all(
            float(far(one, alike[torch.tensor(order), places]).max()) <= _SAME
            for one, order in [(plain, [*range(rows)]), *zip(moved, orders, strict=True)]
        )
        if by_place:
            groups = _groups(alike, spread)
            alone = len(groups) == 2 and min(map(len, groups)) == 1
            if not (alone or 2 * len(groups) > rows):  # halves of a batch, each treated in its own way
                return {"asked": True}
            place = next((group[0] for group in groups if len(group) == 1), 0) if alone else -1
            return found | {"of": "place", "groups": len(groups), "alone": place}
        nudges = torch.stack(
            [far(self._answers(nudged=row), plain) for row in range(rows)]
        )  # (nudged, answer)
        says = (nudges > _NUDGED) & (nudges > 1e-3 * nudges.amax(1, keepdim=True))
        says.fill_diagonal_(True)
        others = int(says.sum()) - rows
        senders = int((says.sum(1) > 1).sum())
        # Samples that are only asked say nothing to others: those that are to be told by a set of examples.
        if 4 * senders >= 3 * rows and _is_one_whole(says):
            return found | {"of": "others", "share": others / (rows * (rows - 1))}
        changed = torch.stack(
            [
                far(self._answers([(row + 1) % rows if at == row else at for at in range(rows)]), plain)
                > _APART
                for row in range(rows)
            ]
        )
        changed.fill_diagonal_(False)
        sayers = torch.nonzero(changed.any(1)).flatten().tolist()
        if len(sayers) == 1 and int(changed[sayers[0]].sum()) == rows - 1:
            return found | {"of": "one", "alone": sayers[0]}
        return {"asked": True}


class _Nudge:
    """Changes the numbers of one sample a little."""

    def __init__(self, row: int, rows: int, axis: Any) -> None:
        self._row, self._rows, self._axis = row, rows, axis

    def of(self, value: Any) -> Any:
        """Returns arguments, or a tensor, with the sample's numbers changed."""
        if isinstance(value, torch.Tensor):
            axis = self._axis(value)
            if axis is None or not value.dtype.is_floating_point:
                return value
            value = value.detach().clone()
            one = value.select(axis, self._row)
            size = one.numel()
            pattern = torch.sin(torch.arange(1, size + 1, dtype=torch.float64) * 1.7).to(one.dtype)
            one += _NUDGE * float(value.std() if value.numel() > 1 else 1) * pattern.reshape(one.shape)
            return value
        if type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        if type(value) is dict:
            return {key: self.of(item) for key, item in value.items()}
        return value

    def of_table(self, _module: Any, _args: Any, output: Any) -> Any:
        """Changes what an embedding gives, where it has a row for each sample."""
        return self.of(output) if isinstance(output, torch.Tensor) and len(output) == self._rows else None


def _groups(alike: Any, spread: float) -> list[list[int]]:
    """Returns the places that give every sample the same answer."""
    groups: list[list[int]] = []
    for place in range(alike.shape[1]):
        for group in groups:
            if float((alike[:, place] - alike[:, group[0]]).abs().max()) <= _APART * spread:
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def _is_one_whole(says: Any) -> bool:
    """Whether all samples hang together: groups of a batch that are apart, as pairs or the members of an ensemble, are
    meant.
    """
    reached = says | says.T
    for _ in range(5):  # 2 ** 5 >= _ROWS
        reached = (reached.double() @ reached.double()) > 0
    return bool(reached.all())


def order_question(reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Order | None:
    """Returns what a model is to be asked; None if nothing is: it must be plain which axis of what it gets, and of what
    it holds, has a place for each sample.
    """
    model = reference()
    tensors: list[Any] = []
    if model is None or not _collect([args, kwargs], tensors) or not tensors or not tensors[0].dim():
        return None
    rows = int(tensors[0].shape[0])
    if rows < _LEAST_ROWS or (rows > _ROWS and tensors[0].numel() // rows > 1 << 20):
        return None
    kept = min(rows, _ROWS)
    for tensor in tensors:
        sizes = list(tensor.shape)
        if sizes.count(rows) > 1 or (rows not in sizes and any(size and size % rows == 0 for size in sizes)):
            return None
        if kept != rows and kept in sizes and sizes[0] != rows:  # of the rows that the child takes
            return None
    if _has_list_of(rows, [args, kwargs]) or _is_held(model, rows):
        return None
    return Order(model, args, kwargs, rows)


def _collect(value: Any, tensors: list[Any]) -> bool:
    """Collects the tensors of arguments. Returns false if there is something else than tensors and plain values."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensors.append(value)
        return len(tensors) <= 16 and value.device.type == "cpu" and not value.is_sparse
    if type(value) in (list, tuple):
        return len(value) <= 64 and all(_collect(item, tensors) for item in value)
    if type(value) is dict:
        return len(value) <= 64 and all(_collect(item, tensors) for item in value.values())
    return isinstance(value, _PLAIN)


def _has_list_of(rows: int, value: Any) -> bool:
    """Whether a list has an item for each sample."""
    if type(value) is dict:
        value = list(value.values())
        return any(_has_list_of(rows, item) for item in value)
    if type(value) not in (list, tuple):
        return False
    return len(value) == rows or any(_has_list_of(rows, item) for item in value)


def _is_held(model: Any, rows: int) -> bool:
    """Whether a module holds something with a row for each sample: a mask or a graph of the batch that was given to it
    before the call, a state, or what is learnt of each place.
    """
    for module in model.modules():
        of_torch = type(module).__module__.startswith("torch.nn.")
        for value in _own(module.__dict__):
            items = (
                value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            )
            for item in list(items)[:_MOST_HELD]:
                if isinstance(item, torch.Tensor) and any(size and size % rows == 0 for size in item.shape):
                    return True
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == rows:
            return True
        for tensor in () if of_torch else (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and rows in tensor.shape:
                return True
    return False


def _own(held: dict[str, Any]) -> list[Any]:
    """Returns a module's own attributes, without those of torch."""
    return [value for name, value in held.items() if not name.startswith("_")][:_MOST_HELD]
