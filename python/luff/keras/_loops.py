"""Detects steps in the user's own training loops on TensorFlow.

An eager step lasts from the entry of one `tf.GradientTape` to the entry of the next, if a gradient was computed or
applied meanwhile. A compiled step is a call of the outermost `tf.function` whose graph contains an optimizer's
update.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

from luff._codes import GapReason, Mode
from luff._weak import Identities
from luff.keras._asked import Asked
from luff.keras._tensorflow import Kept, kept_of
from luff.keras._values import ARRAYS

if TYPE_CHECKING:
    from luff.keras._hook import Callback
    from luff.keras._tensorflow_values import TensorFlowValues

__all__ = ["Loops"]

_TRAIN = int(Mode.TRAIN)
_NOT_SEEN = int(GapReason.NOT_SEEN)


class Loops:
    """Steps of training loops, for one hook. All methods are called under its lock."""

    def __init__(self, hook: Callback, values: TensorFlowValues) -> None:
        self.hook: Any = weakref.proxy(hook)
        self._values = values
        self._trains: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # functions whose graph contains an optimizer's update
        self._variables: Identities[None] = Identities()
        self.open = False  # whether a step of a loop is open
        self._worked = False  # whether a gradient was computed or applied in it
        self._function: Any = None  # weak reference to the compiled function of the step, if it has one
        self._asked = Asked()

    def trains(self, function: Any) -> bool:
        """Whether this function contains an optimizer's update."""
        return function in self._trains

    def begin(self, function: Any = None) -> None:
        """Begins a step when a tape is entered, or a function that trains is called."""
        hook = self.hook
        if hook.steps.mode and not self.open:
            return  # a step of fit
        if self.open:
            if function is None and not self._worked:
                return  # another tape in the same step
            self.end()
        if self._is_of(function) and hook.steps.begin_again(_TRAIN, function, ARRAYS):
            self.open, self._worked = True, False
            return
        holder = self._values.holder_of(function) if function is not None and self.trains(function) else None
        if hook.steps.begin_waiting(_TRAIN, holder, function) is None:
            return
        hook.forget_training()
        hook.tell_input()
        self.open, self._worked = True, False
        self._function = None if function is None else weakref.ref(function)
        kept: Kept | None = None if function is None else kept_of(function, _TRAIN)
        if hook.steps.may_wait and self._values.due():
            hook.steps.record_now()
        known = self._variables.things()
        self._values.begin_loop(kept, known if function is not None and self.trains(function) else [])

    def _is_of(self, function: Any) -> bool:
        """Whether the current or last step is a call of this function."""
        return self._function is not None and self._function() is function and function is not None

    def worked(self, variables: list[Any], function: Any) -> None:
        """Notes that a gradient is computed or applied, eagerly or in the graph of a function."""
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

    def called(self, model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Notes in which mode the loop calls a model, eagerly or in the graph of a function."""
        event = self._asked.called(model, arguments, named)
        session = self.hook.session
        if event is not None and session is not None:
            session.event_json(json.dumps(event))

    def returned(self, function: Any) -> None:
        """Ends the step if the outermost function, which has returned, trained; otherwise drops it."""
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
        """Drops the step."""
        if self.open:
            self.open = False
            self.hook.steps.abandon()
