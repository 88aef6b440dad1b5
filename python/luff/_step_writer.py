"""Writes the steps of one run: modes, updates, numbers, arrays, and what users save between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luff._arrays import Arrays
from luff._codes import EventKind, GapReason, Mode, Role
from luff._hook import Guard, Session, StepClock

__all__ = ["MAX_WAITING_NS", "MAX_WAITING_STEPS", "Saved", "StepWriter"]

_OPTIMIZER_STEP = int(EventKind.OPTIMIZER_STEP)
_OTHER, _SCALAR, _CUSTOM = int(Role.OTHER), int(Role.SCALAR), int(Role.CUSTOM)
_MAX_SAVED = 1024
_MAX_SAVED_BYTES = 64 << 20
# Finished steps may be written later, several together (docs/adr/0012-steps-may-wait.md).
MAX_WAITING_STEPS = 64
MAX_WAITING_NS = 200_000_000


class Saved:
    """Numbers and arrays that users have saved and no step has taken yet. Bounded.

    Attributes
    ----------
    any
        Whether there are some; each step looks at it.
    """

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float]] = []
        self.arrays: list[tuple[str, Any]] = []
        self.any = False
        self._bytes = 0

    def __bool__(self) -> bool:
        return self.any

    def scalar(self, name: str, value: float) -> bool:
        """Adds a number; returns False if there are too many."""
        if len(self.scalars) >= _MAX_SAVED:
            return False
        self.scalars.append((name, value))
        self.any = True
        return True

    def array(self, name: str, array: Any) -> bool:
        """Adds a copy of an array; returns False if there are too many arrays or bytes."""
        if len(self.arrays) >= _MAX_SAVED or self._bytes + array.nbytes > _MAX_SAVED_BYTES:
            return False
        self.arrays.append((name, array.copy()))
        self.any = True
        self._bytes += array.nbytes
        return True


class StepWriter:
    """Writes steps, one after the other. A framework's hook owns one, and calls it under its lock.

    A step begins (`begin`), receives values (`scalar`, `array`, `updated`), and is published (`end`) or dropped
    (`abandon`). Values that arrive while no step is open are ignored; errors are left to the caller.

    Parameters
    ----------
    opener
        Returns a function that opens the session, or None once the hook is gone. The first step calls it.
    guard
        Counts the hook's errors; those not reported yet go into the step that ends.

    Attributes
    ----------
    session
        None until it is open.
    arrays
        Defines and captures tensors; None until the session is open.
    clock
        Counts of steps and updates.
    mode
        Mode of the open step; 0 if none is open.
    update
        Updates before that step.
    saved
        What users have saved since the last step.
    forced
        Mode set by hand, or None.
    provisional
        Whether the open step may be dropped: what users save then goes into the next one unless it is confirmed.
    """

    def __init__(self, opener: Callable[[], Callable[[], object] | None], guard: Guard) -> None:
        self._opener = opener
        self.guard = guard
        self.session: Session | None = None
        self.arrays: Arrays | None = None
        self.clock = StepClock()
        self.mode = 0
        self.update = 0
        self.saved = Saved()
        self.forced: int | None = None
        self.provisional = False

    def opened(self, session: Session) -> None:
        """Called when the session is open."""
        self.session, self.arrays = session, Arrays(session)

    # Steps -----------------------------------------------------------------------------------------------------

    def begin(
        self, mode: int, *, saved: Saved | None = None, update: int | None = None, provisional: bool = False
    ) -> Session | None:
        """Begins a step; one that is still open is published first, or dropped if it was provisional.

        Returns None if no session can be opened.

        Parameters
        ----------
        saved
            Recorded instead of what users have saved.
        update
            Updates before the step; by default as counted.
        provisional
            See the attribute.
        """
        if self.provisional:
            self.abandon()
        elif self.mode:
            self.end()
        session = self.session or self.open()
        if session is None:
            return None
        self.begin_as(session, self.forced or mode)
        self.update = self.clock.latest_update() if update is None else update
        self.provisional = provisional
        if saved is None and self.saved and not provisional:
            saved = self.take_saved()
        if saved:
            self.write(saved)
        return session

    def begin_as(self, session: Session, mode: int) -> int:
        """Begins a step of this mode, whatever was set by hand. The caller sets `update` and writes saved values.

        Returns of which roles anything is due in it: bits, 1 << role.
        """
        self.mode = mode
        return session.begin_step(mode, self.clock.mode_steps[mode])

    def open(self) -> Session | None:
        """Opens the session and returns it; None if that fails."""
        opener = self._opener()
        if opener is not None:
            opener()
        return self.session

    def confirm(self) -> None:
        """Confirms the open step: it is no longer provisional."""
        self.provisional = False
        if self.saved:
            self.write(self.take_saved())

    def updated(self, optimizer: int = 0) -> None:
        """Counts an update of an optimizer in this step."""
        self.clock.updates[optimizer] = self.clock.update_of(optimizer) + 1
        if self.session is not None and self.mode:
            self.session.event(_OPTIMIZER_STEP, optimizer)

    def end(self, ended_ns: int = 0, lasted_ns: int = 0) -> None:
        """Publishes the open step, if any. A step that ended earlier is given its time: `ended_ns` in Unix ns."""
        session, mode = self.session, self.mode
        if session is None or not mode:
            return
        if self.guard.unreported:
            self.guard.report(session)
        self.mode, self.provisional = 0, False
        step = self.clock.mode_steps[mode]
        session.end_step(mode, self.clock.global_step, step, self.update, ended_ns, lasted_ns)
        self.clock.advance(mode)

    def abandon(self) -> None:
        """Drops the open step."""
        self.provisional = False
        if self.session is not None and self.mode:
            self.mode = 0
            self.session.abandon_step()

    def finish(self) -> None:
        """Publishes what is left; what users have saved since the last step becomes a step of its own."""
        if self.provisional:
            self.abandon()
        if self.saved and not self.mode and self.session is not None:
            self.begin(int(Mode.GLOBAL))
        self.end()

    # Values of the step ----------------------------------------------------------------------------------------

    def number(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Returns the number of a tensor."""
        if self.arrays is None:
            raise LookupError("no session is open")
        return self.arrays.number(name, role, path, kind)

    def due(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Returns the forms of a tensor that are due in this step; 0 if none are, or no step is open."""
        if self.arrays is None or not self.mode:
            return 0
        return self.arrays.due(self.arrays.number(name, role, path, kind))

    def scalar(self, name: str, value: Any, role: int = _SCALAR, path: str = "", kind: str = "") -> None:
        """Records a number."""
        if self.session is not None and self.mode:
            self.session.scalar(self.number(name, role, path, kind), float(value))

    def array(self, name: str, value: Any, role: int = _OTHER, path: str = "", kind: str = "") -> bool:
        """Records the due forms of an array; `value` may be a function that returns it, called only if some are."""
        if self.arrays is None or not self.mode:
            return False
        number = self.arrays.number(name, role, path, kind)
        if not self.arrays.due(number):
            return False
        return self.arrays.array(number, value() if callable(value) else value)

    # What users save -------------------------------------------------------------------------------------------

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number in this step, or the next."""
        if self.mode and not self.provisional:
            self.before_saved()
            self.scalar(f"scalar/{name}", value)
        elif not self.saved.scalar(name, value):
            self._too_many(f"scalar/{name}", _SCALAR)

    def save_array(self, name: str, value: Any) -> None:
        """Records an array in this step, or the next."""
        array = self.readable(value)
        if self.mode and not self.provisional:
            self.before_saved()
            self.array(name, array, _CUSTOM)
        elif not self.saved.array(name, array):
            self._too_many(name, _CUSTOM)

    def readable(self, value: Any) -> Any:
        """Converts a user's array to what `Arrays.array` takes; the result has `nbytes` and `copy`."""
        return np.asarray(value)

    def take_saved(self) -> Saved:
        """Returns what users have saved since the last step, and clears it."""
        saved, self.saved = self.saved, Saved()
        return saved

    def before_saved(self) -> None:
        """Called before something that users have saved is recorded in this step."""

    def write(self, saved: Saved) -> None:
        """Records what users have saved in this step."""
        self.before_saved()
        for name, value in saved.scalars:
            self.scalar(f"scalar/{name}", value)
        for name, array in saved.arrays:
            self.array(name, array, _CUSTOM)

    def _too_many(self, name: str, role: int) -> None:
        """Records that a value saved by the user was dropped."""
        if self.session is not None:
            self.session.gap(self.number(name, role), int(GapReason.TOO_MANY), 0, 1)
