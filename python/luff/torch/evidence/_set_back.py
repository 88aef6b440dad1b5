"""Weights that were set back between two updates of an optimizer: to the values that they had before its first update,
to the last bit, or to values that an initialisation has drawn anew.

Looked at where a weight was written since the last update, and, since writes by way of `.data` are not
counted, at the first update after a loader was started. An optimizer whose weights are written otherwise, as by
clipping, an average or a state that was kept later, is looked at no more. Uses no torch operation.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from luff.torch.capture._memory import array_of
from luff.torch.capture._recorder import parameters_of
from luff.torch.evidence._events import WaitingEvents

__all__ = ["SetBack"]

_OPTIMIZERS = 8
_WEIGHTS, _ELEMENTS = 8, 64  # of an optimizer, and of a weight, that are compared
_LEAST = 64  # elements in all
_KNOWN = 32  # elements of a weight, at least, that tell whether it was drawn anew by itself
_ALIKE, _ALONE = 0.4, 0.7  # cosine of all weights, and of one: values that were drawn apart have less
_WIDTH = 2.0  # by which the width of what is drawn anew may differ
_MOST = 256  # looks at an optimizer
# Updates of an optimizer before each of which writes are asked for; later, behind a loader's start, or once told.
_EACH = 128
_MOST_COPIED = 1 << 20  # elements of a weight that can't be read in place

Values = list[np.ndarray[Any, Any]]


def _cosine(one: Any, other: Any) -> float:
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return abs(float(one @ other)) / length if length > 0 else 1.0


class _Held:
    """Weights of an optimizer: their first values before its first update, and at the newest look."""

    __slots__ = ("begun", "first", "last", "looks", "told", "update", "weights")

    def __init__(self, optimizer: Any, update: int) -> None:
        held = [p for p in parameters_of(optimizer) if p.requires_grad and not is_lazy(p) and p.dim() > 1]
        if any(p.dtype is torch.bfloat16 and p.numel() > _MOST_COPIED for p in held):
            held = []
        count = min(len(held), _WEIGHTS)
        self.weights = [weakref.ref(held[at * len(held) // count]) for at in range(count)]
        first = self.values()
        self.first = first if first is not None and sum(map(len, first)) >= _LEAST else None
        self.last = self.first
        self.looks, self.told, self.update = 0, False, update
        self.begun = update

    def values(self) -> Values | None:
        arrays = []
        for reference in self.weights:
            weight = reference()
            array = None if weight is None else array_of(weight)
            if array is None:
                return None
            numbers = array.flat[:_ELEMENTS]  # a copy
            if np.iscomplexobj(numbers):
                numbers = numbers.view(numbers.real.dtype)
            arrays.append(numbers.astype(np.float64))
        return arrays

    def became(self, now: Values) -> str:
        """Returns what the weights were set to: `first`, `drawn`, or something else ("")."""
        first, last = self.first, self.last
        if first is None or last is None or any(len(a) != len(b) for a, b in zip(now, first, strict=True)):
            return ""
        if all(np.array_equal(a, b) for a, b in zip(now, first, strict=True)):
            return "first"
        mine, drawn, before = [], [], []
        for new, old, newest in zip(now, first, last, strict=True):
            width = float(old.std())
            if width == 0 or not np.isfinite(new).all():
                if not np.array_equal(new, old):
                    return ""
                continue
            if len(new) >= _KNOWN and not (
                width / _WIDTH < float(new.std()) < width * _WIDTH
                and _cosine(new, old) < _ALONE
                and _cosine(new, newest) < _ALONE
            ):
                return ""
            mine.append(new / width)
            drawn.append(old / width)
            before.append(newest / width)
        if sum(map(len, mine)) < _LEAST:
            return ""
        new = np.concatenate(mine)
        apart = _cosine(new, np.concatenate(drawn)) < _ALIKE and _cosine(new, np.concatenate(before)) < _ALIKE
        return "drawn" if apart else ""


class SetBack(WaitingEvents):
    """Looks at the weights of optimizers, under the hook's lock and guard.

    Attributes
    ----------
    due
        Numbers of optimizers whose next update is the first since a loader was started, or one of the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, _Held] = {}  # by number of the optimizer; those that are looked at
        self._started: set[int] = set()  # those before whose next update a loader was started
        self.due: set[int] = set()

    def loader_started(self) -> None:
        """Called when a loader was started."""
        if self._held:
            self.due.update(self._held)
            self._started.update(self._held)

    def begins(self, number: int, optimizer: Any, update: int) -> None:
        """Called when an optimizer is about to make its first update, the one after `update` others."""
        if len(self._held) < _OPTIMIZERS:
            held = _Held(optimizer, update)
            if held.first is not None:
                self._held[number] = held
                self.due.add(number)

    def look(self, number: int, update: int, written: bool) -> None:
        """Called when an optimizer is about to make an update, and its weights may have been set back.

        Parameters
        ----------
        number
            Of the optimizer.
        update
            How many updates it has made.
        written
            Whether its weights were written since the last of them, as far as writes are counted.
        """
        started, held = number in self._started, self._held.get(number)
        self._started.discard(number)
        if held is None or (update - held.begun >= _EACH and not held.told):
            self.due.discard(number)
        if held is None or not (written or started):
            return
        now = held.values()
        held.looks += 1
        with np.errstate(all="ignore"):  # weights that are not finite say nothing to the user
            to = "" if now is None else held.became(now)
        if to:
            self.waiting.append(
                {"kind": "weights_set_back", "optimizer": number, "to": to, "updates": update - held.update}
            )
            held.told, held.update = True, update
        if now is None or held.looks >= _MOST or (written and not to):
            del self._held[number]
            if held.told and not to:
                self.waiting.append(
                    {
                        "kind": "weights_set_back",
                        "optimizer": number,
                        "to": "",
                        "updates": update - held.update,
                    }
                )
            return
        held.last = now
