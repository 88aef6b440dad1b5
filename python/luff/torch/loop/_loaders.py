"""The data loaders of a training, described once each in the document ``loaders``."""

from __future__ import annotations

import json
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from luff._codes import Mode
from luff._hook import Session, StepClock
from luff._weak import Identities

__all__ = ["Loaders"]

_TRAIN = int(Mode.TRAIN)
_MOST = 64


_SETTINGS = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


def _samples(loader: Any) -> int | None:
    """Returns the length of the dataset where PyTorch's own samplers ask for it at each start; else None."""
    if type(getattr(loader, "sampler", None)) not in (RandomSampler, SequentialSampler):
        return None
    return len(loader.dataset)


class Loaders:
    """The loaders that were started, in this order.

    Parameters
    ----------
    clock
        Counts of steps: a loader trains if TRAIN steps came while it was the one that was started last.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._known: Identities[int] = Identities()
        self._described: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._steps_before = 0
        self._session: Session | None = None

    def opened(self, session: Session) -> None:
        """Records into `session` from now on."""
        self._session = session
        if self._described:
            self._tell()

    def hand_over(self, clock: StepClock) -> Loaders:
        """Returns what is known of the loader in use, for the process's next training."""
        following = Loaders(clock)
        if self._last is not None:
            following._last = {**self._last, "number": 0, "trains": False}
            following._described.append(following._last)
        return following

    def started(self, loader: Any) -> None:
        """Called when a loader has been asked for an iterator."""
        steps = self._clock.mode_steps[_TRAIN]
        last, changed = self._last, False
        if last is not None and steps > self._steps_before and not last["trains"]:
            last["trains"] = changed = True
        self._steps_before = steps
        number = self._known.get(loader)
        if number is None and len(self._described) < _MOST:
            number = self._known[loader] = len(self._described)
            self._described.append(self._describe(number, loader))
            changed = True
        self._last = None if number is None else self._described[number]
        if changed and self._session is not None:
            self._tell()

    def _describe(self, number: int, loader: Any) -> dict[str, Any]:
        settings = {name: getattr(loader, name, None) for name in _SETTINGS}
        return {
            "number": number,
            "type": type(loader).__name__,
            "dataset": type(getattr(loader, "dataset", None)).__name__,
            "samples": _samples(loader),
            **{name: value for name, value in settings.items() if isinstance(value, bool | int)},
            "trains": False,
        }

    def _tell(self) -> None:
        if self._session is not None:
            self._session.set_document("loaders", json.dumps({"loaders": self._described}))
