"""The hook of frameworks that report when a step begins, ends and updates: threads and stops.

A framework's module derives from `StepHook`, writes through `steps` inside of `told` (or `while_live`), and calls
`boundary` outside of it, at the end of a TRAIN step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luff import corrections
from luff._base_hook import BaseHook
from luff._codes import NO_ID, GapReason, Mode
from luff._hook import RunOptions
from luff._turn import Turn

__all__ = ["StepHook"]

_TRAIN = int(Mode.TRAIN)


class StepHook(BaseHook):
    """A hook that the framework notifies of each step.

    Attributes
    ----------
    turn
        Decides which thread's calls make the steps.
    """

    def __init__(
        self,
        options: RunOptions,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self.turn = Turn()

    # Overridden by frameworks -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Ends a step that is over, where otherwise only the next one would end it."""

    def publish(self) -> None:
        """Publishes finished steps that are waiting to be written."""

    # Calls of the training -------------------------------------------------------------------------------------

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Like `while_live`, for calls of the training: does nothing in a thread that does not have the turn."""
        return self.guarded(place, self._told, function, arguments) if self.live else None

    def _told(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self.turn.keeps():
            if self.steps.mode and self.turn.lost():
                self.abandon()  # its thread has ended
            elif self.steps.mode and self.turn.idle():
                self.settle()
            if not self.turn.mine(not self.steps.mode):
                self._count_missed()
                return None
        return function(*arguments)

    def abandon(self) -> None:
        """Drops the open step."""
        self.steps.abandon()

    def _count_missed(self) -> None:
        """Counts a call of another thread that was not recorded."""
        count = self.turn.to_tell()
        if count and self.session is not None:
            self.session.gap(NO_ID, int(GapReason.NOT_SEEN), 0, count)

    def boundary(self) -> None:
        """Carries out corrections and stops after a TRAIN step, outside of the lock.

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
        """Waits until every finished step can be read; False if time ran out."""
        self.while_live("publish", self.publish)
        return super().flush(timeout_s)

    def _finish(self) -> None:
        self.publish()
        self.steps.finish()

    def forked(self) -> None:
        """Makes the hook of a forked child a worker of its own."""
        super().forked()
        self.turn = Turn()
