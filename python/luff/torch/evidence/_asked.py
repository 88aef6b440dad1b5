"""Questions to a model, which forked children answer while the training goes on. docs/adr/0010."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from luff._hook import Session
from luff.torch.replay._replay import Replay

__all__ = ["ASK_AT", "Asked", "AskedOfCalls", "reordered"]

ASK_AT = (2, 64)  # TRAIN steps of the process; an output layer initialized to zero shows nothing at first
_LARGEST = 2 << 30  # largest process in bytes: memory written while the child lives is copied


class Asked:
    """The children that answer one kind of question, under the hook's lock and guard.

    Attributes
    ----------
    answered
        Whether a child has answered, or could not be started.
    """

    def __init__(self, kind: str, opened: list[Asked] | None = None) -> None:
        self._kind = kind  # of the events
        self._opened: list[Asked] = [] if opened is None else opened
        self._waiting: list[tuple[int, Replay]] = []
        self._ended: list[Replay] = []
        self._no_replay = ""  # why a child could not be started
        self.answered = False

    @property
    def open(self) -> bool:
        """Whether something may be to be recorded."""
        return self in self._opened

    def opens(self) -> None:
        """Notes that something may be to be recorded: in a list of all kinds, which each step looks at."""
        if self not in self._opened:
            self._opened.append(self)

    @property
    def asked(self) -> bool:
        """Whether there is an answer, or a child that works on it. One that had nothing to say does not count."""
        return self.answered or bool(self._waiting)

    def ask(self, step: int, question: Callable[[], dict[str, Any] | None], models: list[Any]) -> None:
        """Starts a child.

        Parameters
        ----------
        step
            TRAIN step of the process, for the event.
        question
            Called in the child only: modes and buffers may change. Returns the answer, as JSON of at most 4 KiB.
        models
            Models whose parameters and buffers it uses.
        """
        self.opens()
        replay = Replay.ask(question, _LARGEST, models)
        if isinstance(replay, str):
            self._no_replay, self.answered = replay, True
        else:
            self._waiting.append((step, replay))

    def record(self, session: Session, until: float = 0.0) -> None:
        """Records the answers that have arrived. `until` is for the end of the run: waits at most until then
        (monotonic).
        """
        if self._no_replay:
            session.event_json(json.dumps({"kind": self._kind, "no_replay": self._no_replay}))
            self._no_replay = ""
        going = []
        for step, replay in self._waiting:
            answer = replay.answer(until)
            if answer is None:
                going.append((step, replay))
                continue
            self._ended.append(replay)
            if answer and _is_finite(answer):
                self.answered = True
                session.event_json(json.dumps({"kind": self._kind, "step": step, **answer}))
        self._waiting = going
        self._ended = [replay for replay in self._ended if not replay.collected()]
        if not (self._waiting or self._ended) and self.open:
            self._opened.remove(self)


class AskedOfCalls(Asked):
    """Children that are asked about the calls of models in one TRAIN step."""

    def __init__(self, kind: str, opened: list[Asked] | None = None) -> None:
        super().__init__(kind, opened)
        self._step = -1
        self._calls: list[Any] = []

    def begins(self, step: int) -> None:
        """Called when a TRAIN step begins; steps are counted from the first of the process."""
        self._step = step if step in ASK_AT and not self.asked else -1
        self._calls.clear()

    @property
    def due(self) -> bool:
        """Whether calls of models are looked at."""
        return self._step >= 0

    def _take(self) -> tuple[int, list[Any]]:
        """Returns the step and its calls, which are forgotten."""
        taken = self._step, self._calls.copy()
        self._step = -1
        self._calls.clear()
        return taken


def reordered(value: Any, order: Any, axis_of: Callable[[Any], int | None]) -> Any:
    """Returns arguments with the given samples, in this order. `axis_of`: a tensor's axis of samples, if it has one."""
    if isinstance(value, torch.Tensor):
        axis = axis_of(value)
        return value if axis is None else value.index_select(axis, order)
    if type(value) in (list, tuple):
        return type(value)(reordered(item, order, axis_of) for item in value)
    if type(value) is dict:
        return {key: reordered(item, order, axis_of) for key, item in value.items()}
    return value


def _is_finite(answer: dict[str, Any]) -> bool:
    """Whether all numbers are finite: JSON has no others, and a model that gives them says nothing."""
    return all(math.isfinite(value) for value in answer.values() if isinstance(value, float))
