"""The batch that a DataLoader gave last: where a loss's targets lie in it, and the labels of an evaluation.

An evaluation that gathers answers in lists, computes a metric of another library or writes its loss itself shows
nobody its labels. They are where the training's targets are: at the same place of the loader's batch. A place is
believed once several steps have shown it and none has shown another.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from luff.torch.capture._memory import address_of, copy_of_rows, is_readable, numbers_in
from luff.torch.evidence._broken_pairs import BrokenPairs

__all__ = ["Batches", "Place", "same_values"]

_MOST = 8  # tensors of a batch that are remembered
_SHOWN = 3  # steps in which the targets lay at a place
_SENT_ROWS = 64  # of targets that are compared with those of a batch, where they are a copy
_SLACK = 1e-4  # targets of an error that a script writes come from a difference, which was rounded


@dataclass(slots=True)
class Place:
    """Where the targets of a loss lie in batches."""

    index: int = -1  # among the tensors of a batch
    shown: int = 0  # steps that have shown it
    wrong: bool = False  # targets lay elsewhere in some step
    ahead: bool = False  # they lay in the batch before the newest
    #: Bounds of targets of classes, which labels of evaluations keep.
    bounds: tuple[float, float] | None = None
    first: float | None = None  # of an evaluation's labels
    varies: bool = False  # they are not all that number: made-up labels are

    @property
    def believed(self) -> bool:
        return self.shown >= _SHOWN and not self.wrong


def same_values(one: Any, other: Any) -> bool:
    """Whether two tensors are the same memory: one may be a view of the other."""
    if one is other or one is None or not (is_readable(one) and is_readable(other)):
        return one is other
    address = address_of(one)
    return bool(address and address == address_of(other) and one.numel() == other.numel())


def _first_numbers(tensor: Any) -> Any:
    if not is_readable(tensor) or not tensor.shape:
        return None
    words = copy_of_rows(tensor, min(_SENT_ROWS, tensor.shape[0]))
    return None if words is None else numbers_in(words, tensor.dtype)


def _equal_numbers(tensor: Any, shape: tuple[int, ...], numbers: Any) -> bool:
    """Whether a tensor holds these numbers, those of the first rows of one of this shape: of another type, or with an
    axis of length 1 more.
    """
    if tensor is None or not tensor.shape or not shape or tensor.shape[0] != shape[0]:
        return False
    if tensor.numel() != math.prod(shape):
        return False
    own = _first_numbers(tensor)
    if own is None or own.size > numbers.size:
        return False
    own, numbers = own.reshape(-1).astype(np.float64), numbers.reshape(-1)[: own.size].astype(np.float64)
    return bool(np.allclose(own, numbers, rtol=_SLACK, atol=_SLACK * float(np.abs(own).max(initial=0.0))))


class Batches:
    """Weak references to the tensors of the newest batch and of the one before: a loader around this one that fetches
    a batch ahead, as Accelerate's, hands on the one before, but for the last. Under the hook's lock and guard, but for
    `on`.
    """

    #: Batches are looked at: from the first loss that got an output of a model on, or since two loaders that shuffle
    #: are in use, in all of the process.
    on = False

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[Any]] = []
        self._before: list[weakref.ref[Any]] | None = None  # nothing is known of it yet
        self._looked = False
        self._input: weakref.ref[Any] | None = None  # of the model that was called last
        self.pairs = BrokenPairs()
        #: Called with a batch and the iterator that has given it.
        self.given: Callable[..., None] = self._given

    def _given(self, batch: Any, _iterator: Any = None) -> None:
        self._before = self._tensors if self._looked else None
        self._tensors, self._looked = [], True
        items = batch.values() if isinstance(batch, dict) else batch
        if isinstance(items, torch.Tensor) or not isinstance(items, (list, tuple, type({}.values()))):
            return
        for item in items:
            if isinstance(item, torch.Tensor):
                if len(self._tensors) == _MOST:
                    return
                self._tensors.append(weakref.ref(item))

    def started(self, loader: Any, iterator: Any, number: int | None) -> None:
        """Called when a loader was started."""
        if self.pairs.started(loader, iterator, number):
            Batches.on, self.given = True, self._given_by_one
        else:
            self.given = self._given

    def _given_by_one(self, batch: Any, iterator: Any = None) -> None:
        if self.pairs.on:
            self.pairs.given(batch, iterator)
        self._given(batch)

    def asked(self, tensor: Any) -> None:
        """Called when a model is called with this tensor."""
        self._input = weakref.ref(tensor)

    def _asked_about(self, place: Place) -> list[weakref.ref[Any]]:
        """Returns the batch that the model was called with: that in which its input lies. If that is not known, the
        newest, or none where the loader is ahead.
        """
        given = None if self._input is None else self._input()
        for batch in (self._tensors, self._before or []):
            if given is not None and any(same_values(one(), given) for one in batch):
                return batch
        return [] if place.ahead else self._tensors

    def trained(self, place: Place, target: Any) -> None:
        """Called when a loss was computed in training."""
        if place.wrong or not self._tensors:
            return
        found = -1
        for batch in (self._tensors, self._before or []):
            found = next((i for i, one in enumerate(batch) if same_values(one(), target)), -1)
            if found >= 0:
                place.ahead = place.ahead or batch is not self._tensors
                break
        numbers = _first_numbers(target)
        if numbers is not None:
            self.found(place, tuple(target.shape), numbers, not target.dtype.is_floating_point, found)
        elif found < 0 and self._before is not None:
            place.wrong = True

    def found(
        self, place: Place, shape: tuple[int, ...], numbers: Any, of_classes: bool, index: int = -1
    ) -> None:
        """Called with the first targets of a loss in training, and where they lie in the batch, if that is known."""
        if place.wrong or not self._tensors:
            return
        if index < 0:
            for batch in (self._tensors, self._before or []):
                same = [i for i, one in enumerate(batch) if _equal_numbers(one(), shape, numbers)]
                if same:
                    index = same[0] if len(same) == 1 else -1
                    place.ahead = place.ahead or batch is not self._tensors
                    break
        if index < 0 and self._before is None:
            return  # the batch before may be the one
        if index < 0 or place.index not in (-1, index) or not numbers.size:
            place.wrong = True
            return
        place.index = index
        place.shown += 1
        if of_classes:
            low, high = float(numbers.min()), float(numbers.max())
            before = place.bounds or (low, high)
            place.bounds = min(before[0], low), max(before[1], high)

    def labels(self, place: Place, rows: int) -> Any:
        """Returns the tensor of an evaluation's batch that holds labels for `rows` answers; else None."""
        if not place.believed or place.index >= len(batch := self._asked_about(place)):
            return None
        tensor = batch[place.index]()
        if tensor is None or not tensor.shape or tensor.shape[0] != rows:
            return None
        numbers = _first_numbers(tensor)
        if numbers is None or not numbers.size:
            return None
        if (
            place.bounds is not None
            and not place.bounds[0] <= numbers.min() <= numbers.max() <= place.bounds[1]
        ):
            place.wrong = True  # rows' numbers, or labels that nobody knows
            return None
        if place.first is None:
            place.first = float(numbers.flat[0])
        place.varies = place.varies or bool((numbers != place.first).any())
        return tensor if place.varies else None
