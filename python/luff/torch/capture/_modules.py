"""Inputs and outputs of module calls, when a collection wants them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from luff._codes import GapReason, Role
from luff._hook import Session
from luff.torch.capture._memory import Layouts, is_readable
from luff.torch.capture._names import Names, class_name

__all__ = ["ModuleCapture", "tensors_in"]

_MAX_TENSORS = 64  # of one call
_MAX_DEPTH = 8
_MAX_CALLS = 256  # of one module in one step
_INPUT, _OUTPUT, _UNSUPPORTED = int(Role.INPUT), int(Role.OUTPUT), int(GapReason.UNSUPPORTED)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors of a nested structure in its own order; bounded in depth."""
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
    """What is known of one module: its name and the numbers of its tensors."""

    __slots__ = ("inputs", "module", "name", "outputs", "path", "step", "type", "used_in", "used_out")

    def __init__(self, module: Any, name: str) -> None:
        self.module = weakref.ref(module)
        self.name = name
        self.path = name
        self.type = class_name(module)
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.step = -1
        self.used_in = 0
        self.used_out = 0


class ModuleCapture:
    """Captures what modules get and give. One per hook."""

    def __init__(self, session: Session, layouts: Layouts, names: Names) -> None:
        self._session = session
        self._layouts = layouts
        self._names = names
        self._known: dict[int, _Calls] = {}
        self._step = 0
        self._alive: dict[int, tuple[Any, int, int]] = {}
        self._next_key = 16
        self.inputs_due = False
        self.outputs_due = False
        self.count = 0  # values captured since begin_step

    def begin_step(self) -> bool:
        """Asks what is due in the step that has begun; True if anything of modules is."""
        self._step += 1
        self._alive.clear()
        self._next_key = 16
        self.count = 0
        self.inputs_due = self._session.due_role(_INPUT) != 0
        self.outputs_due = self._session.due_role(_OUTPUT) != 0
        return self.inputs_due or self.outputs_due

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if not self.inputs_due:
            return
        calls = self._find(module)
        if calls is None:
            return
        for value in (args, kwargs) if kwargs else (args,):
            for tensor in tensors_in(value):
                if calls.used_in >= _MAX_CALLS:
                    self._session.gap(calls.inputs[0], int(GapReason.TOO_MANY), 0, 1)
                    return
                if calls.used_in == len(calls.inputs):
                    name = f"{calls.name}_input_{calls.used_in}"
                    calls.inputs.append(self._session.define_tensor(name, _INPUT, calls.path, calls.type))
                self.capture(calls.inputs[calls.used_in], tensor)
                calls.used_in += 1

    def after(self, module: Any, output: Any) -> None:
        """A module has returned."""
        if not self.outputs_due:
            return
        calls = self._find(module)
        if calls is None:
            return
        for tensor in tensors_in(output):
            if calls.used_out >= _MAX_CALLS:
                self._session.gap(calls.outputs[0], int(GapReason.TOO_MANY), 0, 1)
                return
            if calls.used_out == len(calls.outputs):
                name = f"{calls.name}_output_{calls.used_out}"
                calls.outputs.append(self._session.define_tensor(name, _OUTPUT, calls.path, calls.type))
            self.capture(calls.outputs[calls.used_out], tensor)
            calls.used_out += 1

    def capture(self, number: int, tensor: Any) -> None:
        """Captures one tensor that may go away any time, if it is due."""
        forms = self._session.due_tensor(number)
        if not forms:
            return
        self.count += 1
        if is_readable(tensor):
            layout = self._layouts.find(tensor)
        else:
            layout, tensor = self._layouts.find_local(tensor)
        address = tensor.data_ptr() if layout >= 0 else 0
        if layout < 0 or (not address and tensor.numel()):
            self._session.gap(number, _UNSUPPORTED, forms, 1)
            return
        self._session.capture_one(number, layout, address, self._key(tensor))

    def _key(self, tensor: Any) -> int:
        """The same number only for the same tensor, still alive and unchanged since."""
        version = tensor._version if not tensor.is_inference() else 0
        known = self._alive.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version and not tensor.is_inference():
            return known[2]
        self._next_key += 1
        if len(self._alive) < 65536:
            self._alive[id(tensor)] = (weakref.ref(tensor), version, self._next_key)
        return self._next_key

    def _find(self, module: Any) -> _Calls | None:
        calls = self._known.get(id(module))
        if calls is None or calls.module() is not module:
            # A compiled model calls none of its modules that could be seen: its own call stands for the model's.
            inner = module._orig_mod if type(module).__name__ == "OptimizedModule" else module
            found = self._names.module(inner)
            if found is None:
                return None
            calls = self._known[id(module)] = _Calls(module, found[0])
        if calls.step != self._step:
            calls.step, calls.used_in, calls.used_out = self._step, 0, 0
        return calls
