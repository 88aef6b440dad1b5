"""How long the calls of modules take, forward and backward, in one step of many (``profile = "full"``).

Forward, each call is timed. Backward, nodes of the graph say where the pass is: the node that made an output, and the
one that made an input. They are only looked at, so no value changes; when the step ends they are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from luff._codes import NO_ID, GapReason
from luff._core import ModuleTimer
from luff._hook import Session
from luff.torch.capture._gradients import compiles_backward
from luff.torch.capture._memory import Layouts
from luff.torch.capture._modules import ModuleCapture, tensors_in
from luff.torch.capture._names import Names, compiled_from

__all__ = ["EVERY", "FIRST", "ModuleTimes", "TimedCapture", "times_modules"]

#: The first step of a training that is timed: those before it are slower than the others.
FIRST = 20
#: One step in so many. A prime: no other period of a training hides a module.
EVERY = 67
_MAX_NODES = 8  # of the inputs, and of the outputs, of one call
_MAX_HANDLES = 65_536  # of one step
_HIDDEN, _RECOMPUTED, _TOO_MANY = 1, 2, 4
# The number of the next node of this thread's graph; None: this torch does not tell.
_next_node: Callable[[], int] | None = getattr(torch.autograd, "_get_sequence_nr", None)
_HAS_HOOKS = hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook")
_transforms: Callable[[], Any] = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None
)


def times_modules(config: Any) -> bool:
    """Returns whether a configuration asks for times of modules."""
    return bool(config.get("profile") == "full")


class ModuleTimes:
    """Times the calls of one step. Its calls never raise, but for what the timed call raises.

    Parameters
    ----------
    names
        Says which modules have a number; the others are not timed.
    failed
        Is told of errors.
    """

    def __init__(self, names: Names, failed: Callable[[str, BaseException], object]) -> None:
        self._names = names
        self._failed = failed
        self.timer = ModuleTimer()
        self._handles: list[Any] = []
        self._sees_graph = False

    def begin(self) -> None:
        """Begins a step."""
        self.end()
        self.timer.begin()
        self._sees_graph = _HAS_HOOKS and _next_node is not None and not compiles_backward()

    def end(self) -> None:
        """Leaves the nodes of the step as they were."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def backward_begins(self) -> None:
        """A backward pass begins; in one that is compiled, the nodes' hooks would become part of what is compiled."""
        if compiles_backward():
            self._sees_graph = False
            self.end()
        else:
            self.timer.backward_begins()

    def call(self, original: Callable[..., Any], module: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a module and times it. No module's time goes on afterwards until `timer.resume`."""
        number = self._number(module)
        timer = self.timer
        if number is None:
            timer.resume()
            try:
                return original(module, *args, **kwargs)
            finally:
                timer.pause()
        call = timer.enter(number)
        sees = self._sees_graph and call != NO_ID and torch.is_grad_enabled()
        first = 0
        if sees and _next_node is not None:
            first = _next_node()
            self._watch(call, (args, kwargs) if kwargs else args, -1, leaves=True)
        timer.resume()
        try:
            output = original(module, *args, **kwargs)
        finally:
            timer.leave(call)
        if sees:
            self._watch(call, output, first, leaves=False)
        return output

    def _number(self, module: Any) -> int | None:
        try:
            found = self._names.module(compiled_from(module))
        except Exception as error:  # a module may look up its attributes, and compare, as it likes
            self._failed("module times", error)
            return None
        return None if found is None else found[1]

    def _watch(self, call: int, values: Any, first: int, *, leaves: bool) -> None:
        """Watches the nodes that made some tensors, if their numbers are at least `first`."""
        try:
            if _transforms() is not None:
                return
            if len(self._handles) >= _MAX_HANDLES:
                self._sees_graph = False
                self.timer.tell(_TOO_MANY)
                return
            stamp = None
            seen: dict[int, Any] = {}  # keeps the nodes: another one may get the number of one that is gone
            for tensor in tensors_in(values, -1 if leaves else 0):
                if has_torch_function_unary(tensor):
                    continue
                node = tensor.grad_fn
                if node is None or id(node) in seen or (first >= 0 and node._sequence_nr() < first):
                    continue
                seen[id(node)] = node
                stamp = stamp or partial(self.timer.at, self.timer.stamp(call, leaves))
                self._handles.append(node.register_prehook(stamp))
                if len(seen) == _MAX_NODES:
                    return
        except Exception as error:
            self._sees_graph = False
            self._failed("module times", error)

    def hidden(self) -> None:
        """Some modules of the step run where nothing sees them."""
        self.timer.tell(_HIDDEN)

    def recomputed(self, module: Any) -> None:
        """A module is called in a backward pass: if it is one of these, activations are computed again."""
        if self._number(module) is not None:
            self.timer.tell(_RECOMPUTED)


class TimedCapture(ModuleCapture):
    """Captures what a `ModuleCapture` does, and times the calls of some TRAIN steps.

    Parameters
    ----------
    session, layouts, names, tell
        As in `ModuleCapture`.
    step
        Returns how many TRAIN steps of this training are over if a TRAIN step is open; else -1.
    failed
        As in `ModuleTimes`.
    """

    def __init__(
        self,
        session: Session,
        layouts: Layouts,
        names: Names,
        tell: Callable[..., object] | None,
        step: Callable[[], int],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        super().__init__(session, layouts, names, tell)
        self._times = ModuleTimes(names, failed)
        self._open_step = step
        self._timed = -1  # the step that is timed
        # The methods below instead: as attributes they would keep this alive until Python collects garbage.
        del self.end_step, self.backward_begins, self.backward_left

    def begin_step(self, roles: int) -> bool:
        """Looks up what is due in the current step, times included; returns whether anything is."""
        self.captures = super().begin_step(roles)
        self.times = None
        step = self._open_step()
        if step >= FIRST and (step - FIRST) % EVERY == 0:
            self.times = self._times
            if step != self._timed:  # else an evaluation came in between
                self._timed = step
                self._times.begin()
        self.due = self.captures or self.times is not None
        return self.due

    def end_step(self, published: bool) -> None:
        """Hands the times over."""
        times, self.times = self.times, None
        if times is not None:
            self._timed = -1
            times.end()
            if published:
                self._session.module_times(times.timer)
            times.timer.begin()
        self.gradients.end_step(published=published)

    def backward_begins(self, factor: Any) -> None:
        """A backward pass begins."""
        self._times.backward_begins()
        self.gradients.backward_begins(factor)

    def backward_left(self) -> None:
        """It has returned or raised."""
        self._times.timer.backward_ends()
        self.gradients.backward_ended()

    def hidden(self, reason: GapReason) -> None:
        """Records that modules inside a compiled or scripted graph are not visible."""
        if self.times is not None:
            self.times.hidden()
        if self.captures:
            super().hidden(reason)
