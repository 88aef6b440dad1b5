"""Training loops of the user's own on TensorFlow: which calls are a step.

Eager: from the entry of a `tf.GradientTape` to that of the next one, if a gradient was asked for or applied meanwhile.
Compiled: each call of the outermost `tf.function` in whose graph an optimizer updates.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from luff._codes import GapReason, Mode
from luff._weak import Identities
from luff.keras._tensorflow import Kept, kept_of
from luff.keras._values import ARRAYS

if TYPE_CHECKING:
    from luff.keras._hook import Callback
    from luff.keras._tensorflow_values import TensorFlowValues

__all__ = ["Loops"]

_TRAIN = int(Mode.TRAIN)
_NOT_SEEN = int(GapReason.NOT_SEEN)


class Loops:
    """Steps of loops, for one hook. All under its lock."""

    def __init__(self, hook: Callback, values: TensorFlowValues) -> None:
        self.hook: Any = weakref.proxy(hook)
        self._values = values
        self._trains: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # functions in whose graph an optimizer updates
        self._variables: Identities[None] = Identities()
        self.open = False  # a step of a loop has begun
        self._worked = False  # and a gradient was asked for, or applied
        self._function: Any = None  # weak reference to the compiled function of the step, if it has one

    def trains(self, function: Any) -> bool:
        """An optimizer updates in this function."""
        return function in self._trains

    def begin(self, function: Any = None) -> None:
        """A tape is entered, or a function that trains is called."""
        hook = self.hook
        if hook.steps.mode and not self.open:
            return  # a step of fit
        if self.open:
            if function is None and not self._worked:
                return  # a second tape beside the first
            self.end()
        if self._is_of(function) and hook.steps.begin_again(_TRAIN, function, ARRAYS):
            self.open, self._worked = True, False
            return
        holder = self._values.holder_of(function) if function is not None and self.trains(function) else None
        if hook.steps.begin_waiting(_TRAIN, holder, function) is None:
            return
        hook.forget_training()
        self.open, self._worked = True, False
        self._function = None if function is None else weakref.ref(function)
        kept: Kept | None = None if function is None else kept_of(function, _TRAIN)
        if hook.steps.may_wait and self._values.due():
            hook.steps.record_now()
        known = self._variables.things()
        self._values.begin_loop(kept, known if function is not None and self.trains(function) else [])

    def _is_of(self, function: Any) -> bool:
        """The step is, or was, a call of this function."""
        return self._function is not None and self._function() is function and function is not None

    def worked(self, variables: list[Any], function: Any) -> None:
        """A gradient is asked for, or applied: eagerly, or in the graph of a function."""
        if self.hook.steps.mode and not self.open:
            return
        if not self.open:
            self.begin(function)
        self._worked = True
        if function is not None:
            self._trains.add(function)
        for variable in variables:
            if variable not in self._variables:
                self._variables[variable] = None

    def returned(self, function: Any) -> None:
        """The outermost function has returned: what it trained is a step."""
        if self.open and self._is_of(function):
            if self._worked or self.trains(function):
                self.end()
            else:
                self.drop()

    def end(self) -> None:
        """Publishes the step."""
        if not self.open:
            return
        self.open = False
        if not self._worked and self._function is None:
            self.hook.steps.abandon()
            return
        if self.hook.steps.hold({}):
            return
        before = self.hook.steps.clock.latest_update()
        self._values.after(None, _TRAIN)
        hidden = self.hook.steps.clock.latest_update() - before - 1
        session = self.hook.session
        if self._function is not None and hidden > 0 and session is not None:
            session.gap(0xFFFFFFFF, _NOT_SEEN, 0, hidden)
        self.hook.steps.end()

    def drop(self) -> None:
        """The step was none."""
        if self.open:
            self.open = False
            self.hook.steps.abandon()
