"""Captures inputs and outputs of module calls, and watches their gradients, if a collection wants them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from luff import _codes as codes
from luff._codes import GapReason, Role
from luff._hook import Session
from luff.torch.capture._device import DeviceRows, is_on_device
from luff.torch.capture._gradients import GradientCapture, Watch
from luff.torch.capture._memory import Layouts, address_of, is_readable
from luff.torch.capture._names import Names, class_name, compiled_from
from luff.torch.capture._places import Places

if TYPE_CHECKING:
    from luff.torch.capture._early import KeptValue
    from luff.torch.capture._module_times import ModuleTimes

__all__ = ["ModuleCapture", "tensors_in"]

_MAX_TENSORS = 64  # in one call
_MAX_DEPTH = 8
_MAX_CALLS = 256  # of one module in one step
_ROLES = _INPUT, _OUTPUT = int(Role.INPUT), int(Role.OUTPUT)
_GRADIENT_ROLES = _INPUT_GRADIENT, _OUTPUT_GRADIENT = int(Role.INPUT_GRADIENT), int(Role.OUTPUT_GRADIENT)
_ATTENTION = int(Role.ATTENTION)
_LOOKED_AT = sum(
    1 << role for role in (*_ROLES, *_GRADIENT_ROLES, Role.ATTENTION, Role.LOSS_INPUT, Role.LABEL)
)
_SIDES = "input", "output"
_UNSUPPORTED = int(GapReason.UNSUPPORTED)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yields the tensors of a nested structure in its own order; bounded in depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH:
        if isinstance(value, tuple | list):
            for item in value[:_MAX_TENSORS]:
                yield from tensors_in(item, depth + 1)
        elif isinstance(value, dict):
            for index, item in enumerate(value.values()):
                if index >= _MAX_TENSORS:
                    return
                yield from tensors_in(item, depth + 1)
        elif hasattr(value, "__dataclass_fields__"):
            for name in value.__dataclass_fields__:
                yield from tensors_in(getattr(value, name, None), depth + 1)


class _Calls:
    """What is known of one module: its name, and the numbers of its inputs and outputs."""

    __slots__ = ("gradients", "module", "name", "numbers", "step", "type", "used")

    def __init__(self, module: Any, name: str) -> None:
        self.module = weakref.ref(module)
        self.name = name
        self.type = class_name(module)
        self.numbers: tuple[list[int], list[int]] = ([], [])
        self.gradients: tuple[dict[int, int], dict[int, int]] = ({}, {})  # index -> number
        self.step = -1
        self.used = [0, 0]  # how many of them were used in the step


class ModuleCapture:
    """Captures inputs and outputs of modules. One per hook.

    Attributes
    ----------
    due
        Whether calls of modules are to be told of in the open step.
    captures
        Whether anything of them is to be captured.
    times
        What times them in the open step; None in most.
    watched
        Gets each module and what it has returned, in steps in which they are told of; None: nobody asks.
    """

    times: ModuleTimes | None = None
    watched: Callable[[Any, Any], None] | None = None

    def __init__(
        self,
        session: Session,
        layouts: Layouts,
        names: Names,
        tell: Callable[..., object] | None = None,
    ) -> None:
        self._session = session
        self._layouts = layouts
        self._devices = DeviceRows(session)
        self._names = names
        self.gradients = GradientCapture(session, layouts, tell)
        self._known: dict[int, _Calls] = {}
        self._step = 0
        self._alive: dict[int, tuple[Any, int, int]] = {}
        self._next_key = 16
        self._values_due = 0, 0  # forms: of inputs, of outputs
        self._gradients_due = 0, 0
        self._attention_due = 0
        self.places = Places()
        self.due = self.captures = False
        # Those of the gradients; what also times modules has its own.
        self.backward_begins: Callable[[Any], None] = self.gradients.backward_begins
        self.backward_left: Callable[[], None] = self.gradients.backward_ended
        self.end_step: Callable[[bool], None] = self.gradients.end_step

    def begin_step(self, roles: int) -> bool:
        """Looks up what is due in the current step; returns whether anything is. `roles`: those of which anything is,
        as bits.
        """
        if not (roles & _LOOKED_AT or self.captures or self._alive):
            return False  # as in the step before
        self._step += 1
        self._alive.clear()
        self._next_key = 16
        self.gradients.end_step(published=False)
        due = self._session.due_role
        self._values_due = inputs, outputs = due(_INPUT), due(_OUTPUT)
        self._gradients_due = of_inputs, of_outputs = due(_INPUT_GRADIENT), due(_OUTPUT_GRADIENT)
        self._attention_due = attention = due(_ATTENTION)
        if attention:
            self.places = Places()
        self.due = self.captures = any_due = bool(inputs or outputs or of_inputs or of_outputs or attention)
        return any_due

    def due_forms(self) -> int:
        """Returns the forms that are due of inputs, outputs, their gradients or attention in the open step."""
        forms = 0
        for role in (*_ROLES, *_GRADIENT_ROLES, _ATTENTION):
            forms |= self._session.due_role(role)
        return forms

    def before(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool = False
    ) -> None:
        """Called when a module is about to run; `outermost` if no other module calls it."""
        if self._attention_due:
            self.places.before(module)
        gradients = bool(self._gradients_due[0]) and (outermost or self._is_model(module))
        if gradients or self._values_due[0]:
            tensors = tensors_in((args, kwargs), -1) if kwargs else tensors_in(args)
            self._capture_all(module, tensors, 0, gradients)

    def after(self, module: Any, output: Any) -> None:
        """Called when a module has returned."""
        if self._attention_due:
            self.places.after(module)
        if self.watched is not None:
            self.watched(module, output)
        if self._values_due[1] or self._gradients_due[1]:
            self._capture_all(module, tensors_in(output), 1, self._gradients_due[1] != 0)

    def module_at(self, node: int) -> tuple[str, str]:
        """Returns name and type of the module whose call made a node of the graph; "" if none is known."""
        module = self.places.at(node)
        calls = None if module is None else self._calls_of(module)
        return ("", "") if calls is None else (calls.name, calls.type)

    def capture_kept(
        self, module: Any, values: Iterable[tuple[KeptValue | None, Watch | None]], side: int
    ) -> None:
        """Captures what a call took (side 0) or returned (1) before the session was open."""
        calls = self._calls_of(module)
        if calls is None or not (self._values_due[side] or self._gradients_due[side]):
            return
        for value, watch in values:
            index = self._next_index(calls, side)
            if index < 0:
                return
            if value is not None and self._values_due[side]:
                self.kept(self._number(calls, side, index), value)
            if watch is not None and self._gradients_due[side]:
                self.gradients.adopt(self._gradient_number(calls, side, index), watch)

    def _is_model(self, module: Any) -> bool:
        return any(reference() is module for reference, _ in self._names.roots)

    def _calls_of(self, module: Any) -> _Calls | None:
        """Returns what is known of a module, with nothing used in this step yet if it is its first call."""
        calls = self._known.get(id(module))
        if calls is None or calls.module() is not module:
            found = self._names.module(compiled_from(module))
            if found is None:
                return None
            calls = self._known[id(module)] = _Calls(module, found[0])
        if calls.step != self._step:
            calls.step, calls.used = self._step, [0, 0]
        return calls

    def _next_index(self, calls: _Calls, side: int) -> int:
        """Returns the place of the module's next tensor in this step; -1, with a gap, if there are too many."""
        index = calls.used[side]
        if index >= _MAX_CALLS:
            number = (calls.numbers[side] or [codes.NO_ID])[0]
            self._session.gap(number, int(GapReason.TOO_MANY), 0, 1)
            return -1
        calls.used[side] = index + 1
        return index

    def _number(self, calls: _Calls, side: int, index: int) -> int:
        numbers = calls.numbers[side]
        while index >= len(numbers):
            name = f"{calls.name}_{_SIDES[side]}_{len(numbers)}"
            numbers.append(self._session.define_tensor(name, _ROLES[side], calls.name, calls.type))
        return numbers[index]

    def _gradient_number(self, calls: _Calls, side: int, index: int) -> int:
        number = calls.gradients[side].get(index)
        if number is None:
            name = f"gradient/{calls.name}_{_SIDES[side]}_{index}"
            number = self._session.define_tensor(name, _GRADIENT_ROLES[side], calls.name, calls.type)
            calls.gradients[side][index] = number
        return number

    def _capture_all(self, module: Any, tensors: Iterable[Any], side: int, gradients: bool) -> None:
        calls = self._calls_of(module)
        if calls is None:
            return
        values = self._values_due[side]
        for tensor in tensors:
            index = self._next_index(calls, side)
            if index < 0:
                return
            if values:
                self.capture(self._number(calls, side, index), tensor)
            if gradients:
                self.gradients.watch(self._gradient_number(calls, side, index), tensor)

    def capture(self, number: int, tensor: Any) -> None:
        """Captures a tensor, which may be freed at any time, if it is due."""
        forms = self._session.due_tensor(number)
        if not forms:
            return
        if is_readable(tensor):
            layout = self._layouts.find(tensor)
        else:
            layout, tensor = self._layouts.find_local(tensor)
        address = address_of(tensor) if layout >= 0 else 0
        if layout < 0 or (not address and tensor.numel()):
            if not self._on_device(number, tensor):
                self._session.gap(number, _UNSUPPORTED, forms, 1)
            return
        self._session.capture_one(number, layout, address, self._key(tensor))

    def _on_device(self, number: int, tensor: Any) -> bool:
        """Captures a tensor in the memory of an accelerator; False if it is not there, or not readable."""
        if not is_on_device(tensor):
            return False
        layout = self._layouts.find(tensor)
        try:
            if layout >= 0:
                self._devices.one(number, layout, tensor)
        except RuntimeError:  # inside a transform
            return False
        return layout >= 0

    def kept(self, number: int, value: KeptValue) -> None:
        """Captures a value that was kept before the session was open, if it is due."""
        forms = self._session.due_tensor(number)
        if not forms:
            return
        layout, reason = -1, value.reason
        if not reason:
            layout = self._layouts.find_rows(
                value.dtype, value.shape, value.strides, value.shape[0] if value.shape else 1
            )
        if layout < 0:
            self._session.gap(number, reason or _UNSUPPORTED, forms, 1)
            return
        known = self._alive.get(id(value))
        if known is None:
            self._next_key += 1
            known = self._alive[id(value)] = (value, 0, self._next_key)
        self._session.capture_one(number, layout, value.address, known[2])

    def hidden(self, reason: GapReason) -> None:
        """Records a gap because modules inside a compiled or scripted graph are not visible."""
        forms = self.due_forms()
        if forms:
            self._session.gap(codes.NO_ID, int(reason), forms, 1)

    def _key(self, tensor: Any) -> int:
        """Returns a key that is the same only for the same tensor, if it is still alive and unchanged."""
        version = tensor._version if not tensor.is_inference() else 0
        known = self._alive.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version and not tensor.is_inference():
            return known[2]
        self._next_key += 1
        if len(self._alive) < 65536:
            self._alive[id(tensor)] = (weakref.ref(tensor), version, self._next_key)
        return self._next_key
