"""Holds back steps of which only numbers are recorded, to write many at a time (docs/adr/0012-steps-may-wait.md)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from luff._hook import Guard, Session
from luff._step_writer import MAX_WAITING_NS, MAX_WAITING_STEPS, Saved, StepWriter

__all__ = ["Held", "HeldSteps", "Holder"]


class Holder(Protocol):
    """Buffers values of finished steps that are not yet recorded."""

    def waits(self) -> bool:
        """Whether it also has all values of the step that has just ended."""


class Held(NamedTuple):
    """A finished step that is not yet recorded."""

    mode: int
    global_step: int
    mode_step: int
    began_ns: int  # Unix time
    ended_ns: int
    metrics: dict[str, Any]


class Recorder(Protocol):
    """Records held steps."""

    def before_held(self, holder: Any, until_ns: int) -> None:
        """Called before steps that ended until then (Unix time) are recorded."""

    def record_held(self, held: Held, holder: Any) -> None:
        """Records one held step."""


class HeldSteps(StepWriter):
    """Writes steps; a step that records only numbers may be held back.

    Attributes
    ----------
    recorder
        Records the held steps.
    may_wait
        Whether the open step may be held: nothing of it is recorded yet.
    """

    def __init__(self, opener: Callable[[], Callable[[], object] | None], guard: Guard) -> None:
        super().__init__(opener, guard)
        self.recorder: Recorder | None = None
        self.may_wait = False
        self._held: list[Held] = []
        self._holder: Holder | None = None  # holder of the held steps
        self._of: Any = None  # weak reference to the model or function that runs them
        self._began_ns = 0

    def begin(
        self, mode: int, *, saved: Saved | None = None, update: int | None = None, provisional: bool = False
    ) -> Session | None:
        """Begins a step that is recorded at once."""
        if self.mode:
            self.end()
        self.release()
        self._holder = self._of = None
        return super().begin(mode, saved=saved, update=update, provisional=provisional)

    def begin_waiting(self, mode: int, holder: Holder | None, of: Any) -> Session | None:
        """Begins a step that may be held if nothing else is recorded in it.

        Parameters
        ----------
        holder
            Buffers the values of the step; None means that it is recorded at once.
        of
            The model or function that runs the step, for `begin_again`.
        """
        if holder is None:
            return self.begin(mode)
        if self.mode:
            self.end()
        if self._held and (self._holder is not holder or self._held[0].mode != (self.forced or mode)):
            self.release()
        self._holder, self._of = holder, weakref.ref(of)
        self.may_wait = True
        session = super().begin(mode)
        self.may_wait = self.may_wait and session is not None
        self._began_ns = time.time_ns()
        return session

    def begin_again(self, mode: int, of: Any, roles: tuple[int, ...]) -> bool:
        """Begins a step like the held ones, quickly. False if it is of another kind, or one of the roles is due."""
        session, held = self.session, self._held
        if not held or session is None or self.mode or held[0].mode != mode:
            return False
        if self._of is None or self._of() is not of or self.saved or self.forced:
            return False
        session.begin_step(mode, self.clock.mode_steps[mode])
        if any(map(session.due_role, roles)):
            return False
        self.mode, self.may_wait = mode, True
        self._began_ns = time.time_ns()
        return True

    def record_now(self) -> None:
        """Releases the held steps, because something is about to be recorded in the open step."""
        self.may_wait = False
        self.release()

    before_saved = record_now

    def hold(self, metrics: dict[str, Any]) -> bool:
        """Ends the open step; it is published with others, at most 0.2 s later while steps continue.

        Returns False if that is not possible: the step must be recorded now.
        """
        if not self.may_wait or self._holder is None or not self._holder.waits():
            self.record_now()
            return False
        if self.session is not None:
            self.session.mark_step_end()
        mode, now = self.mode, time.time_ns()
        step = self.clock.mode_steps[mode]
        self._held.append(Held(mode, self.clock.global_step, step, self._began_ns, now, metrics))
        self.mode, self.may_wait = 0, False
        self.clock.advance(mode)
        if len(self._held) >= MAX_WAITING_STEPS or now - self._held[0].ended_ns >= MAX_WAITING_NS:
            self.release()
        return True

    def release(self) -> None:
        """Publishes the held steps. A step that is open has no values yet, and begins again."""
        session, held, self._held = self.session, self._held, []
        if session is None or not held:
            return
        current = self.mode
        self._record("before_held", self._holder, held[-1].ended_ns)
        for one in held:
            self.mode, self.update = one.mode, self.clock.latest_update()
            session.begin_step(one.mode, one.mode_step)
            self._record("record_held", one, self._holder)
            if self.guard.unreported:
                self.guard.report(session)
            lasted = max(one.ended_ns - one.began_ns, 0)
            session.end_step(one.mode, one.global_step, one.mode_step, self.update, one.ended_ns, lasted)
        self.mode, self.update = current, self.clock.latest_update()
        if current:
            session.begin_step(current, self.clock.mode_steps[current])

    def _record(self, name: str, *arguments: Any) -> None:
        try:
            if self.recorder is not None:
                getattr(self.recorder, name)(*arguments)
        except Exception as error:  # affects the values of one step; the others are recorded
            self.guard.note("held", error)

    def end(self, ended_ns: int = 0, lasted_ns: int = 0) -> None:
        """Publishes the open step, if any."""
        if self.mode and self.may_wait:
            self.record_now()
        super().end(ended_ns, lasted_ns)

    def abandon(self) -> None:
        """Drops the open step."""
        self.may_wait = False
        super().abandon()
