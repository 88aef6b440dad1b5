"""Asks a model that gets padded sequences and a mask, or lengths, whether it uses these.

In a forked child other masks are given with the same sequences, in evaluation and in training mode: if no number of any
result changes, the mask is ignored. Then other values are written where it marks padding, and padding is cut off: if
the answers of padded rows change, padding counts. docs/adr/0010.
"""

from __future__ import annotations

from typing import Any

import torch

from luff.torch.capture._memory import is_readable
from luff.torch.capture._modules import tensors_in

__all__ = ["Masked", "mask_question"]

_LEAST_ROWS, _LENGTH = 4, 4
_CUT = 32  # rows that are asked for without their padding
_COUNTS = 0.1  # of the outputs' spread: what padding says counts
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
Key = int | str


class Masked:
    """A call of a model with sequences, and which of its arguments may be masks or lengths."""

    def __init__(self, model: Any, args: Any, kwargs: Any, keys: list[Key]) -> None:
        self.model, self.args, self.kwargs, self.keys = model, list(args), dict(kwargs), keys

    def _get(self, key: Key) -> Any:
        return self.args[key] if isinstance(key, int) else self.kwargs[key]

    def evaluate(self) -> dict[str, Any] | None:
        """Asks the model. Only for a forked child: modes, buffers and the state of random numbers change."""
        first = self._get(self.keys[0])
        rows = int(first.shape[0])
        for key in self.keys[1:]:
            lengths = _lengths(self._get(key), first)
            if lengths is None:
                continue
            change = self._change(first, lengths) if self._is_ignored(key) else None
            if change is not None:
                padded = int((lengths <= first.shape[1] - 2).sum())
                return {"mask": str(key), "padding": change, "padded_rows": padded, "mask_rows": rows}
        return None

    def _results(self, key: Key, value: Any, training: bool = False) -> list[Any]:
        """Returns all numbers that the model gives if an argument has this value."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if isinstance(key, int):
            args[key] = value
        else:
            kwargs[key] = value
        self.model.train(training)
        torch.manual_seed(0)
        with torch.no_grad():
            result = self.model(*args, **kwargs)
        return self._numbers(result)

    def _numbers(self, result: Any) -> list[Any]:
        found = [result] if isinstance(result, torch.Tensor) else list(tensors_in([result]))
        if not found and hasattr(result, "values"):
            found = list(tensors_in(list(result.values())))
        return [one for one in found if one.dtype.is_floating_point]

    def _is_ignored(self, key: Key) -> bool:
        mask = self._get(key)
        others = [mask.roll(1, 0), mask.flip(0), mask[:1].expand_as(mask).contiguous()]
        others = [one for one in others if not torch.equal(one, mask)]
        for training in (False, True):
            plain = self._results(key, mask, training)
            if not plain or not _same(plain, self._results(key, mask, training)):
                return False
            if not all(_same(plain, self._results(key, other, training)) for other in others):
                return False
        return bool(others)

    def _change(self, first: Any, lengths: Any) -> float | None:
        """Returns how far the answers of padded rows change with other values in their padding (median)."""
        rows, width = int(first.shape[0]), int(first.shape[1])
        places = torch.arange(width)[None].expand(rows, width)
        real = places < lengths[:, None]
        source = torch.where(real, places, places % lengths[:, None])
        other = first.gather(1, source) if first.dim() == 2 else first[torch.arange(rows)[:, None], source]
        before = self._results(self.keys[0], first)[0].double()
        after = self._results(self.keys[0], other)[0].double()
        if before.shape != after.shape or not before.dim() or before.shape[0] != rows:
            return None
        spread = float(before.std())
        if not spread > 0 or not bool(torch.isfinite(before).all() & torch.isfinite(after).all()):
            return None
        apart = (after - before).abs() / spread
        if apart.dim() > 1 and apart.shape[1] == width:  # an answer for each place: of real ones only
            apart = apart * real.reshape(rows, width, *[1] * (apart.dim() - 2))
        changes = apart.reshape(rows, -1).amax(1)[lengths <= width - 2]
        median = float(changes.median())
        return median if median > _COUNTS and self._counts(lengths, before, spread) else None

    def _counts(self, lengths: Any, before: Any, spread: float) -> bool:
        """Returns whether the answers of padded rows are others without their padding (median): a convolution whose
        largest values are taken sees none in zeros. True of a model that takes no shorter sequences.
        """
        rows, width = len(lengths), int(self._get(self.keys[0]).shape[1])
        changes = []
        for row in torch.nonzero(lengths <= width - 2).flatten().tolist()[:_CUT]:
            length = int(lengths[row])

            def cut(value: Any, row: int = row, length: int = length) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                value = value[row : row + 1] if value.shape[:1] == (rows,) else value
                for axis, size in enumerate(value.shape):
                    value = value.narrow(axis, 0, length) if size == width else value
                return value

            self.model.eval()
            try:
                with torch.no_grad():
                    result = self.model(
                        *map(cut, self.args), **{key: cut(one) for key, one in self.kwargs.items()}
                    )
                alone = self._numbers(result)[0].double()[0]
                whole = before[row, :length] if before.shape[1:2] == (width,) else before[row]
                changes.append((alone - whole).abs().amax() / spread)
            except (RuntimeError, ValueError, IndexError, TypeError):
                return True
        return float(torch.stack(changes).median()) > _COUNTS


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def _lengths(mask: Any, first: Any) -> Any:
    """Returns how many places of each row are no padding, by a mask or lengths; None if that is not what it is: behind
    the last real place of each row all places of the sequences must be alike.
    """
    rows, width = int(first.shape[0]), int(first.shape[1])
    if mask.dim() == 1:
        lengths = mask.long()
    else:
        flat = mask.reshape(rows, width)
        if not bool(((flat == 0) | (flat == 1)).all()):
            return None
        flat = flat != 0
        front = flat[:, :1]
        if not bool((front == front[0]).all()):
            return None
        real = flat == front[0]
        lengths = real.long().sum(1)
        if not torch.equal(real, torch.arange(width)[None] < lengths[:, None]):
            return None
    if int(lengths.min()) < 1 or int(lengths.max()) > width:
        return None
    padded = lengths <= width - 2
    if 4 * int(padded.sum()) < rows or len(lengths.unique()) < 2:
        return None
    behind = first[torch.arange(width)[None] >= lengths[:, None]]  # (places, ...)
    before = first[torch.arange(width)[None] < lengths[:, None]]
    if not bool((behind == behind[:1]).all()) or bool((before == before[:1]).all()):
        return None
    return lengths


def mask_question(reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Masked | None:
    """Returns what a model is to be asked; None if nothing is: it gets no sequences, or nothing like a mask."""
    given: list[tuple[Key, Any]] = [*enumerate(args), *kwargs.items()]
    tensors = [(key, one) for key, one in given if isinstance(one, torch.Tensor)]
    if len(tensors) < 2 or (model := reference()) is None:
        return None
    first = tensors[0][1]
    if first.dim() != (3 if first.dtype.is_floating_point else 2) or first.dtype is torch.bool:
        return None
    rows, width = int(first.shape[0]), int(first.shape[1])
    if rows < _LEAST_ROWS or width < _LENGTH or rows * width > 1 << 16 or rows == width:
        return None
    if not all(is_readable(one) for _, one in tensors):
        return None
    keys = [tensors[0][0]]
    for key, one in tensors[1:]:
        sizes = tuple(one.shape)
        is_lengths = sizes == (rows,) and one.dtype in _INTEGERS[:3]
        if is_lengths or sizes in ((rows, width), (rows, 1, width), (rows, 1, 1, width), (rows, width, 1)):
            keys.append(key)
    return Masked(model, args, kwargs, keys[:4]) if len(keys) > 1 else None
