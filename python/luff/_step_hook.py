"""The hook of frameworks that say when a step begins, ends and updates: opening, threads, stops, saved values.

A framework's module derives from `StepHook`, writes by `steps` inside of `told` (or `while_live`), and calls `boundary`
outside of it, at the end of a TRAIN step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from luff import corrections
from luff._base_hook import BaseHook, mode_of
from luff._codes import NO_ID, GapReason, Mode
from luff._hook import RunOptions, Session, environment_document, rank_from_environment
from luff._step_writer import StepWriter
from luff._turn import Turn

__all__ = ["StepHook"]

_TRAIN = int(Mode.TRAIN)


class StepHook(BaseHook):
    """Steps of one run.

    Attributes
    ----------
    steps
        Writes the steps.
    turn
        The thread whose calls are the steps.
    first_rank
        Whether this worker is the first of those that train one model: it records what all of them have.
    """

    #: Name in the document "environment".
    framework = ""
    #: What writes the steps.
    writer: type[StepWriter] = StepWriter
    steps: StepWriter

    def __init__(
        self,
        options: RunOptions,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self.steps = self._make_writer()
        self.turn = Turn()
        self.first_rank = True

    def _make_writer(self) -> StepWriter:
        return self.writer(weakref.WeakMethod(self.ensure_session), self.guard)

    # What a framework says -------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """What the document "environment" says of the framework."""
        return {}

    def rank(self) -> tuple[int, int] | None:
        """Rank and world size of this process, or None."""
        return rank_from_environment()

    def opened(self, session: Session) -> None:
        """The session is open; documents can be written."""

    def settle(self) -> None:
        """Ends a step that is over, where only the next one would have ended it."""

    def publish(self) -> None:
        """Publishes steps that have ended and wait to be written."""

    # For users -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session, once it is open."""
        return self.steps.session

    def set_mode(self, mode: Mode | str | None) -> None:
        """Sets the mode of the steps that follow by hand.

        Parameters
        ----------
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``; None or ``"GLOBAL"``: as the framework says.
        """
        self.steps.forced = mode_of(mode)

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME`` in the current step, or the next."""
        self.while_live("save_scalar", self.steps.save_scalar, str(name), float(value))

    def save_tensor(self, name: str, value: Any) -> None:
        """Records an array under `name` in the current step, or the next (role "custom")."""
        self.while_live("save_tensor", self.steps.save_array, str(name), value)

    # Session ---------------------------------------------------------------------------------------------------

    def open_now(self) -> None:
        """Opens the session at once; errors are the caller's.

        Raises
        ------
        LuffError
            When the run exists already, cannot be created, or the configuration is wrong.
        """
        if self.session is not None:
            return
        rank = self.rank()
        self.first_rank = rank is None or rank[0] == 0
        session, point = self._open_session(rank)
        if point is not None:
            self.steps.clock.resume(point)
        self.steps.opened(session)
        session.set_document(
            "environment", environment_document(framework=self.framework, rank=rank, **self.versions())
        )
        self.opened(session)

    def ensure_session(self) -> Session | None:
        """The session, opened by the first step; None where that fails: the training goes on unwatched."""
        if self.session is None and self.live:
            try:
                self.open_now()
            except Exception as error:
                self.guard.note("open", error)
                self.give_up(f"the run could not be opened: {error}")
        return self.session

    # Calls of the training -------------------------------------------------------------------------------------

    def while_live(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `guarded`, while the hook is live; None otherwise."""
        return self.guarded(place, function, *arguments) if self.live else None

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `while_live`, of what the training does: None in a thread whose steps these are not."""
        return self.guarded(place, self._told, function, arguments) if self.live else None

    def _told(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self.turn.here():
            if self.steps.mode and self.turn.lost():
                self.abandon()  # of a thread that has ended
            elif self.steps.mode and self.turn.idle():
                self.settle()
            if not self.turn.mine(not self.steps.mode):
                self._count_missed()
                return None
        return function(*arguments)

    def abandon(self) -> None:
        """Drops the step that has begun."""
        self.steps.abandon()

    def _count_missed(self) -> None:
        """Another thread's call was not recorded."""
        count = self.turn.to_tell()
        if count and self.session is not None:
            self.session.gap(NO_ID, int(GapReason.NOT_SEEN), 0, count)

    def boundary(self) -> None:
        """After a TRAIN step, outside of the lock.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        session = self.session
        if session is None or not self.live or not session.stop_state():
            return
        if not (self.turn.here() or self.turn.vacant()):
            return
        self.guarded("publish", self.publish)
        self.obey(self.guarded("stop", session.at_step_boundary, self.steps.clock.mode_steps[_TRAIN]) or 0)

    # End -------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until every step that has ended can be read; False if time ran out."""
        self.while_live("publish", self.publish)
        return super().flush(timeout_s)

    def _finish(self) -> None:
        self.publish()
        self.steps.finish()

    def forked(self) -> None:
        """In a forked child: nothing of the parent's session is ours; what it trains is a worker of its own."""
        super().forked()
        forced = self.steps.forced
        self.steps, self.turn = self._make_writer(), Turn()
        self.steps.forced = forced
