"""The data loaders of a training, described once each in the document ``loaders``."""

from __future__ import annotations

import dis
import json
import weakref
from types import FrameType
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from luff._codes import Mode
from luff._hook import Session, StepClock
from luff._weak import Identities

__all__ = ["Loaders"]

_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)
_MOST = 64  # described
_LAST = 255  # numbers, which rows of phases refer to
_SETTINGS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "drop_last",
    "in_order",
)


def _samples(loader: Any) -> int | None:
    """Returns the length of the dataset where PyTorch's own samplers ask for it at each start; else None."""
    if type(getattr(loader, "sampler", None)) not in (RandomSampler, SequentialSampler):
        return None
    return len(loader.dataset)


def asked_by_script(frame: FrameType) -> bool:
    """Returns whether a frame asks for a batch by a call, as ``next(batches)`` does, in code of the user's.

    A loop does not call. Packages do, where the user has told them how many batches to take.
    """
    code = frame.f_code
    if "site-packages" in code.co_filename or "dist-packages" in code.co_filename:
        return False
    instructions, at = code.co_code, frame.f_lasti
    while at > 0 and dis.opname[instructions[at]] == "CACHE":  # of a call of a Python function
        at -= 2
    return "CALL" in dis.opname[instructions[at]]  # of Python 3.11 PRECALL, too, once the code is warm


def _epoch(loader: Any) -> int | None:
    """Returns the number that a sampler shuffles by, its seed and its epoch; None for one that needs none."""
    sampler = getattr(loader, "sampler", None)
    if type(sampler) is not DistributedSampler or not getattr(sampler, "shuffle", False):
        return None
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int) or len(sampler) <= size:  # a batch has all samples, in whatever order
        return None
    epoch, seed = getattr(sampler, "epoch", None), getattr(sampler, "seed", 0)
    return epoch + seed if isinstance(epoch, int) and isinstance(seed, int) else None


class Loaders:
    """The loaders that were started, in this order.

    Parameters
    ----------
    clock
        Counts of steps: a loader trains if TRAIN steps came while it was the one that was started last.

    Attributes
    ----------
    evaluates
        Whether the loader that was started last was started before, when models were called and no backward pass
        came, and TRAIN steps came with another. One that is only the first of two, or begins again while the other goes
        on, is none of those.
    called, decided
        Whether models were called, and a backward pass came, since the newest start.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._known: Identities[int] = Identities()
        self._next = 0  # number
        self._described: dict[int, dict[str, Any]] = {}
        #: Of shuffling samplers at the newest start, by number of the loader: the epoch.
        self._epochs: dict[int, int] = {}
        self._only_trained: set[int] = set()  # loaders since whose newest start TRAIN steps came first
        self._looked_before = 0  # EVAL steps
        self._last: dict[str, Any] | None = None
        self._steps_before = 0
        self._session: Session | None = None
        self._looked: set[int] = set()  # numbers of loaders whose batches models got without a backward pass
        self._iterator: weakref.ref[Any] | None = None
        #: Iterators of the loaders that train, by number.
        self._training: dict[int, weakref.ref[Any]] = {}
        self._passed = False  # the newest iterator is gone, and TRAIN steps go on with an older one
        self.evaluates = self.called = self.decided = False

    def backward_came(self) -> None:
        """Called at the first backward pass since the newest start, which decides whether that was of an evaluation."""
        self.decided, self._passed = True, self._is_over()

    def _is_over(self) -> bool:
        """Whether the newest iterator is gone, as after an evaluation in the middle of an epoch, which goes on."""
        last, iterator = self._last, self._iterator
        if last is None or last["trains"] or iterator is None or iterator() is not None:
            return False
        return any(older() is not None for older in self._training.values())

    def trained(self) -> None:
        """Called when a backward pass has followed although the loader was taken for one of evaluations."""
        self.evaluates = False
        if self._last is not None and not self._last["trains"] and not self._is_over():
            self._last["trains"] = True
            self._tell()

    def batch(self) -> int:
        """Returns how many batches the newest iterator has given; -1 if there is none."""
        iterator = None if self._iterator is None else self._iterator()
        given = getattr(iterator, "_num_yielded", None)
        return given if isinstance(given, int) else -1

    def opened(self, session: Session) -> None:
        """Records into `session` from now on."""
        self._session = session
        if self._described:
            self._tell()

    def hand_over(self, clock: StepClock) -> Loaders:
        """Returns what is known of the loader in use, for the process's next training."""
        following = Loaders(clock)
        following._known = self._known
        following._next = self._next
        if self._last is not None:
            following._last = {**self._last, "trains": False}
            following._described[self._last["number"]] = following._last
        return following

    def started(self, loader: Any, iterator: Any) -> int | None:
        """Called when a loader has been asked for an iterator; returns its number in the document, if it has one."""
        steps = self._clock.mode_steps[_TRAIN]
        last, changed = self._last, False
        if last is not None and self.called and not self.decided:
            self._looked.add(last["number"])
        if last is not None and steps > self._steps_before and not last["trains"] and not self._passed:
            last["trains"] = changed = True
        if last is not None and last["trains"] and self._iterator is not None:
            self._training[last["number"]] = self._iterator
        self.called = self.decided = self._passed = False
        self._iterator = weakref.ref(iterator)
        looked = self._clock.mode_steps[_EVAL]
        # Where evaluations come in the middle of an epoch, TRAIN steps follow the start of their loader, too. The last
        # step of an evaluation is counted when the next one begins.
        if last is not None and steps > self._steps_before and looked <= self._looked_before + 1:
            self._only_trained.add(last["number"])
        self._steps_before, self._looked_before = steps, looked
        number = self._known.get(loader)
        again = number in self._described
        if number not in self._described:
            if len(self._described) == _MOST or self._next >= _LAST:
                number = None
            else:
                if number is None:
                    number = self._known[loader] = self._next
                    self._next += 1
                self._described[number] = self._describe(number, loader)
                changed = True
        self._last = last = None if number is None else self._described[number]
        self.evaluates = (
            again
            and number in self._looked
            and last is not None
            and not last["trains"]
            and any(one["trains"] for one in self._described.values())
        )
        if number is not None and (epoch := _epoch(loader)) is not None:
            changed |= self._shuffles(number, epoch)
        if changed and self._session is not None:
            self._tell()
        return number

    def first_batch(self, number: int, frame: FrameType | None) -> None:
        """Called when `frame` asks an iterator of the loader `number` for its first batch."""
        described = self._described.get(number)
        if described is None or described.get("by_next") is False:
            return
        by_next = frame is not None and asked_by_script(frame)
        if described.get("by_next") is not by_next:
            described["by_next"] = by_next
            self._tell()

    def _shuffles(self, number: int, epoch: int) -> bool:
        """Counts starts with the same epoch and TRAIN steps between. Whether the document has changed."""
        described = self._described[number]
        before = described.get("same_epoch", 1)
        trained = number in self._only_trained
        self._only_trained.discard(number)
        if number not in self._epochs:
            same = 1
        elif self._epochs[number] != epoch or before == 0:
            same = 0  # somebody tells it the epoch, perhaps once for several passes
        else:
            same = min(before + trained, _MOST)
        self._epochs[number] = epoch
        described["same_epoch"] = same
        return bool(same != before)

    def _describe(self, number: int, loader: Any) -> dict[str, Any]:
        collate = getattr(loader, "collate_fn", None)
        settings = {name: getattr(loader, name, None) for name in _SETTINGS}
        return {
            "number": number,
            "type": type(loader).__name__,
            "dataset": type(getattr(loader, "dataset", None)).__name__,
            "sampler": type(getattr(loader, "sampler", None)).__name__,
            "collate": getattr(collate, "__name__", type(collate).__name__),
            "samples": _samples(loader),
            **{name: value for name, value in settings.items() if isinstance(value, bool | int)},
            "trains": False,
        }

    def _tell(self) -> None:
        if self._session is not None:
            self._session.set_document("loaders", json.dumps({"loaders": list(self._described.values())}))
