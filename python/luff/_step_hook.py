"""The hook of frameworks that say themselves when a step begins, ends and updates.

A framework's module derives from `StepHook`, calls `begin`, `scalar`, `array`, `updated` and `end` under
`while_live`, and `boundary` outside of it, at the end of a TRAIN step. Steps, modes, updates, what users give and
how a run ends are the same everywhere.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from luff import corrections
from luff._arrays import Arrays
from luff._base_hook import BaseHook, mode_of
from luff._codes import NO_ID, EventKind, GapReason, Mode, Role
from luff._hook import RunOptions, Session, StepClock, environment_document, rank_from_environment
from luff._turn import Turn

__all__ = ["MAX_HELD", "MAX_HELD_NS", "Held", "Holder", "StepHook"]

_TRAIN = int(Mode.TRAIN)
_OPTIMIZER_STEP = int(EventKind.OPTIMIZER_STEP)
_OTHER, _SCALAR, _CUSTOM = int(Role.OTHER), int(Role.SCALAR), int(Role.CUSTOM)
_MAX_WAITING = 1024  # numbers and values that wait for a step to begin
_MAX_WAITING_BYTES = 64 << 20
MAX_HELD = 64  # steps that wait for each other
MAX_HELD_NS = 200_000_000


class Holder(Protocol):
    """Has what steps have left until they are recorded."""

    def waits(self) -> bool:
        """It has all of the step that has just ended, too."""


class Held(NamedTuple):
    """A step that has ended and is recorded with others, later."""

    mode: int
    global_step: int
    mode_step: int
    began_ns: int  # Unix time
    ended_ns: int
    what: Any  # for `record_held`


class StepHook(BaseHook):
    """Steps of one run.

    Attributes
    ----------
    arrays
        Names and values; None until the session is open.
    clock
        Counts of steps and updates.
    forced
        Mode set by hand, or None.
    turn
        The thread whose calls are the steps.
    """

    #: Name in the document "environment".
    framework = ""

    def __init__(
        self,
        options: RunOptions,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self.clock = StepClock()
        self.arrays: Arrays | None = None
        self.forced: int | None = None
        self.turn = Turn()
        self._session: Session | None = None
        self._mode = 0  # of the step that has begun; 0: none
        self._update = 0  # updates before it
        self._began_ns = 0
        self._later: list[Held] = []
        self._later_of: Any = None  # weak reference
        self._later_from: Holder | None = None  # what has the values of the steps that are held
        self.may_wait = False  # the step that has begun may be held: nothing of it is recorded yet
        self._given_scalars: list[tuple[str, float]] = []
        self._given_arrays: list[tuple[str, Any]] = []
        self._given_bytes = 0

    # What a framework says -------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """What the document "environment" says of the framework."""
        return {}

    def rank(self) -> tuple[int, int] | None:
        """Rank and world size of this process, or None."""
        return rank_from_environment()

    def opened(self, session: Session) -> None:
        """The session is open; documents can be written."""

    # For users -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session, once it is open."""
        return self._session

    def set_mode(self, mode: Mode | str | None) -> None:
        """Sets the mode of the steps that follow by hand.

        Parameters
        ----------
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``; None or ``"GLOBAL"``: as the framework says.
        """
        self.forced = mode_of(mode)

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME`` in the current step, or the next."""
        self.while_live("save_scalar", self._give_scalar, str(name), float(value))

    def save_tensor(self, name: str, value: Any) -> None:
        """Records an array under `name` in the current step, or the next (role "custom")."""
        self.while_live("save_tensor", self._give_array, str(name), value)

    # Session ---------------------------------------------------------------------------------------------------

    def open_now(self) -> None:
        """Opens the session at once; errors are the caller's.

        Raises
        ------
        LuffError
            When the run exists already, cannot be created, or the configuration is wrong.
        """
        if self._session is not None:
            return
        rank = self.rank()
        session, point = self._open_session(rank)
        if point is not None:
            self.clock.resume(point)
        self._session, self.arrays = session, Arrays(session)
        session.set_document(
            "environment", environment_document(framework=self.framework, rank=rank, **self.versions())
        )
        self.opened(session)

    def ensure_session(self) -> Session | None:
        """The session, opened by the first step; None where that fails: the training goes on unwatched."""
        if self._session is None and self.live:
            try:
                self.open_now()
            except Exception as error:
                self.guard.note("open", error)
                self.give_up(f"the run could not be opened: {error}")
        return self._session

    def while_live(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `guarded`, while the hook is live; None otherwise."""
        return self.guarded(place, function, *arguments) if self.live else None

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `while_live`, of what the training does: None in a thread whose steps these are not."""
        return self.guarded(place, self._told, function, arguments) if self.live else None

    def _told(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self.turn.here():
            if self._mode and self.turn.lost():
                self.abandon()  # of a thread that has ended
            elif self._mode and self.turn.idle():
                self.settle()
            if not self.turn.mine(not self._mode):
                self._count_missed()
                return None
        return function(*arguments)

    def settle(self) -> None:
        """Ends a step that is over, where only the next one would have ended it."""

    def _count_missed(self) -> None:
        """Another thread's call was not recorded."""
        count = self.turn.to_tell()
        if count and self._session is not None:
            self._session.gap(NO_ID, int(GapReason.NOT_SEEN), 0, count)

    # Steps (under the lock) ------------------------------------------------------------------------------------

    @property
    def mode(self) -> int:
        """Mode of the step that has begun; 0: none has."""
        return self._mode

    def begin(self, mode: int, holder: Holder | None = None, of: Any = None) -> Session | None:
        """Begins a step; one that is still open is published first.

        Parameters
        ----------
        holder
            Has the values of the step for a while, so that it may be held (`hold`) if nothing else is recorded in it.
        of
            What takes the step, for `begin_again`.
        """
        if self._mode:
            self.end()
        session = self.ensure_session()
        if session is None:
            return None
        mode = self.forced or mode
        if self._later and (self._later_from is not holder or self._later[0].mode != mode):
            self.release()
        self._later_from, self._mode = holder, mode
        self._later_of = None if holder is None or of is None else weakref.ref(of)
        self._update = self.clock.latest_update()
        session.begin_step(mode, self.clock.mode_steps[mode])
        self.may_wait = holder is not None
        if self._given_scalars or self._given_arrays:
            self.record_now()
            self._hand_over()
        if self.may_wait:
            self._began_ns = time.time_ns()
        return session

    def begin_again(self, mode: int, of: Any, roles: tuple[int, ...]) -> bool:
        """Begins a step like those that are held, in few words; False: it is another, or one of the roles is due."""
        session, later = self._session, self._later
        if not later or session is None or self._mode or later[0].mode != mode:
            return False
        if self._later_of is None or self._later_of() is not of:
            return False
        if self._given_scalars or self._given_arrays or self.forced or not self.live:
            return False
        session.begin_step(mode, self.clock.mode_steps[mode])
        if any(map(session.due_role, roles)):
            return False
        self._mode, self.may_wait = mode, True
        self._began_ns = time.time_ns()
        return True

    def record_now(self) -> None:
        """Something will be recorded in the step that has begun: those that are held come first."""
        self.may_wait = False
        if self._later:
            self.release()

    def hold(self, what: Any) -> bool:
        """Ends the step that has begun; it is published with others, 0.2 s later at most while steps come.

        False where that is not possible: it has to be recorded now.
        """
        if not self.may_wait or self._later_from is None or not self._later_from.waits():
            self.record_now()
            return False
        mode, now = self._mode, time.time_ns()
        held = Held(mode, self.clock.global_step, self.clock.mode_steps[mode], self._began_ns, now, what)
        self._later.append(held)
        self._mode, self.may_wait = 0, False
        self.clock.advance(mode)
        if len(self._later) >= MAX_HELD or now - self._later[0].ended_ns >= MAX_HELD_NS:
            self.release()
        return True

    def release(self) -> None:
        """Publishes the steps that are held; a step that has begun is empty still, and begins anew."""
        session, held, self._later = self._session, self._later, []
        if session is None or not held:
            return
        current, holder = self._mode, self._later_from
        self.guarded("held", self.before_held, holder, held[-1].ended_ns)
        for one in held:
            self._mode, self._update = one.mode, self.clock.latest_update()
            session.begin_step(one.mode, one.mode_step)
            self.guarded("held", self.record_held, one, holder)
            if self.guard.unreported:
                self.guard.report(session)
            lasted = max(one.ended_ns - one.began_ns, 0)
            session.end_step(one.mode, one.global_step, one.mode_step, self._update, one.ended_ns, lasted)
        self._mode, self._update = current, self.clock.latest_update()
        if current:
            session.begin_step(current, self.clock.mode_steps[current])

    def before_held(self, holder: Any, until_ns: int) -> None:
        """Steps that were held, and ended until then (Unix time), are about to be recorded."""

    def record_held(self, held: Held, holder: Any) -> None:
        """Records what a step that was held has left."""

    def updated(self, optimizer: int = 0) -> None:
        """An optimizer has updated, in this step."""
        self.clock.updates[optimizer] = self.clock.update_of(optimizer) + 1
        if self._session is not None and self._mode:
            self._session.event(_OPTIMIZER_STEP, optimizer)

    def end(self, ended_ns: int = 0, lasted_ns: int = 0) -> None:
        """Publishes the step that has begun, if one has; with a time (Unix, ns): one that ended then."""
        session, mode = self._session, self._mode
        if session is None or not mode:
            return
        if self.may_wait:
            self.record_now()
        if self.guard.unreported:
            self.guard.report(session)
        self._mode, self.may_wait = 0, False
        step = self.clock.mode_steps[mode]
        session.end_step(mode, self.clock.global_step, step, self._update, ended_ns, lasted_ns)
        self.clock.advance(mode)

    def abandon(self) -> None:
        """Drops the step that has begun."""
        if self._session is not None and self._mode:
            self._mode, self.may_wait = 0, False
            self._session.abandon_step()

    def boundary(self) -> None:
        """After a TRAIN step, outside of the lock.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        session = self._session
        if session is None or not self.live or not session.stop_state():
            return
        if not (self.turn.here() or self.turn.vacant()):
            return
        self.guarded("held", self.release)
        self.obey(self.guarded("stop", session.at_step_boundary, self.clock.mode_steps[_TRAIN]) or 0)

    # Values (under the lock, in a step) ------------------------------------------------------------------------

    def number(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Number of a tensor."""
        if self.arrays is None:
            raise LookupError("no session is open")
        return self.arrays.number(name, role, path, kind)

    def due(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Forms of a tensor due in this step; 0: nothing, or no step has begun."""
        if self.arrays is None or not self._mode:
            return 0
        return self.arrays.due(self.arrays.number(name, role, path, kind))

    def scalar(self, name: str, value: Any, role: int = _SCALAR, path: str = "", kind: str = "") -> None:
        """Records a number in this step."""
        if self._session is not None and self._mode:
            self._session.scalar(self.number(name, role, path, kind), float(value))

    def array(self, name: str, value: Any, role: int = _OTHER, path: str = "", kind: str = "") -> bool:
        """Records what is due of an array in this step; `value` may be a function that gives it, if it is due."""
        if self.arrays is None or not self._mode:
            return False
        number = self.arrays.number(name, role, path, kind)
        if not self.arrays.due(number):
            return False
        return self.arrays.array(number, value() if callable(value) else value)

    def _give_scalar(self, name: str, value: float) -> None:
        if self._mode:
            self.record_now()
            self.scalar(f"scalar/{name}", value)
        elif len(self._given_scalars) < _MAX_WAITING:
            self._given_scalars.append((name, value))
        else:
            self._given_up()

    def _give_array(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        if self._mode:
            self.record_now()
            self.array(name, array, _CUSTOM)
        elif (
            len(self._given_arrays) < _MAX_WAITING and self._given_bytes + array.nbytes <= _MAX_WAITING_BYTES
        ):
            self._given_arrays.append((name, array.copy()))
            self._given_bytes += array.nbytes
        else:
            self._given_up()

    def _given_up(self) -> None:
        if self._session is not None:
            self._session.gap(NO_ID, int(GapReason.TOO_MANY), 0, 1)

    def _hand_over(self) -> None:
        scalars, self._given_scalars = self._given_scalars, []
        arrays, self._given_arrays = self._given_arrays, []
        self._given_bytes = 0
        for name, value in scalars:
            self.scalar(f"scalar/{name}", value)
        for name, array in arrays:
            self.array(name, array, _CUSTOM)

    # End -------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until every step that has ended can be read; False if time ran out."""
        self.while_live("held", self.release)
        return super().flush(timeout_s)

    def _finish(self) -> None:
        self.release()
        if self._given_scalars or self._given_arrays:
            if not self._mode and self._session is not None:
                self.begin(self.forced or int(Mode.GLOBAL))
        self.end()

    def forked(self) -> None:
        """In a forked child: nothing of the parent's session is ours; what it trains is a worker of its own."""
        super().forked()
        self._session, self.arrays, self._mode = None, None, 0
        self.clock, self.turn = StepClock(), Turn()
        self._later, self._later_from, self.may_wait = [], None, False
        self._given_scalars, self._given_arrays, self._given_bytes = [], [], 0
