"""Asks a map-style dataset for the same items again, in a forked child, once its first epoch is over: whether asking
changes what it holds, whether picture and mask are transformed each for itself, and whether only evaluations draw.

docs/adr/0081.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from luff._codes import Mode
from luff._hook import StepClock
from luff.torch.evidence._asked import Asked

__all__ = ["Datasets"]

_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)
_MOST = 8  # datasets that are followed
_LEAST_ITEMS = 8
_DEPTH = 4  # subsets of subsets
_TRIES = 2  # a child that gets no time has no answer


class Datasets(Asked):
    """Chooses the dataset that a child is asked about, under the hook's lock and guard.

    It is called where loaders start; no step knows of it.
    """

    def __init__(self, clock: StepClock, opened: list[Asked] | None = None) -> None:
        super().__init__("dataset", opened)
        self._clock = clock
        self._tries = _TRIES
        self._last: tuple[int, int, int] | None = None  # dataset of the newest start, and the steps before it
        #: By id: a dataset, which is not kept alive, and the TRAIN and EVAL steps since its starts.
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}

    def loader_started(self, iterator: Any) -> None:
        """Called when a loader was started."""
        if self.asked or not self._tries:
            self._known.clear()
            return
        dataset = getattr(iterator, "_dataset", None)
        steps = self._clock.mode_steps
        if self._last is not None and self._last[0] in self._known:
            key, trained, evaluated = self._last
            known, before, looked = self._known[key]
            self._known[key] = known, before + steps[_TRAIN] - trained, looked + steps[_EVAL] - evaluated
        self._last = None
        if dataset is None or not _may_be_asked(dataset):
            return
        again = id(dataset) in self._known and self._known[id(dataset)][0]() is dataset
        if not again:
            self._known = {key: one for key, one in self._known.items() if one[0]() is not None}
            if len(self._known) >= _MOST:
                return
            self._known[id(dataset)] = weakref.ref(dataset), 0, 0
        self._last = id(dataset), steps[_TRAIN], steps[_EVAL]
        if again and self._known[id(dataset)][1] > 0:
            self._ask(dataset, iterator)

    def _ask(self, dataset: Any, iterator: Any) -> None:
        from luff.torch.replay import _asked_items  # a child imports nothing

        evaluated = [known() for known, trained, looked in self._known.values() if looked and not trained]
        others = [one for one in evaluated if one is not None]
        kept = not getattr(iterator, "_num_workers", 0) or getattr(iterator, "_persistent_workers", False)
        question = partial(_asked_items.evaluate, dataset, others[:2], bool(kept))
        self._tries -= 1
        self.ask(self._clock.mode_steps[_TRAIN] - self._clock.first_train_step, question, [])
        self._known.clear()
        self._last = None


def _may_be_asked(dataset: Any) -> bool:
    """Whether a dataset has items by number, and code of the user's gives them."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return False
    for _ in range(_DEPTH):
        if isinstance(dataset, Subset):
            dataset = dataset.dataset
        elif isinstance(dataset, ConcatDataset) and dataset.datasets:
            dataset = dataset.datasets[0]
    module = type(dataset).__module__.partition(".")[0]
    if isinstance(dataset, TensorDataset | list | tuple | dict) or module in (
        "builtins",
        "numpy",
        "datasets",
    ):
        return False  # nothing of the user's is called, or files are read
    try:
        weakref.ref(dataset)
        return len(dataset) >= _LEAST_ITEMS
    except Exception:  # `__len__` is the user's own, and nobody else may have called it
        return False
