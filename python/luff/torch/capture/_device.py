"""Tensors in the memory of an accelerator: the session reads them behind the framework's own work, and their values
arrive a little later, at the step that they belong to.

Uses no torch operation, only attributes; nothing here waits for a device, allocates on it, or loads a library.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from luff._codes import GapReason
from luff._hook import Session
from luff.torch.capture._memory import DTYPE_CODES, PLAIN_TYPES, Layouts, address_of, read_scalar

__all__ = [
    "DeviceBorders",
    "DeviceRows",
    "DeviceScalar",
    "LateBytes",
    "Unchanged",
    "hash_on_device",
    "is_divisor",
    "is_on_device",
    "record_number",
    "scalar_of",
]

#: Returns the framework's current stream on a device, as a number; None in builds without CUDA.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_PLACES = 8
_NUMBERS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32})


def is_on_device(tensor: Any) -> bool:
    """Whether the values of a tensor are in the memory of an accelerator that the session can read."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_cuda
        and tensor.layout is torch.strided
        and _raw_stream is not None
    )


def is_divisor(scale: Any) -> bool:
    """Whether a loss scale is a number on an accelerator that rows there may be divided by."""
    return is_on_device(scale) and scale.dtype is torch.float32 and scale.numel() == 1


class DeviceRows:
    """Rows of tensors on accelerators that are captured together, one call for each device."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[int, list[Any]] = {}  # device -> array, its flat view, numbers used in it

    def begin(self) -> None:
        """Forgets rows that were not captured: whoever added them was interrupted, and their memory may be gone."""
        for rows in self._rows.values():
            rows[2] = 0

    def add(self, packed: int, tensor: Any) -> None:
        """Adds a tensor's row; `packed` is its number and layout. A tensor without memory becomes a gap."""
        address, device = address_of(tensor), tensor.get_device()
        rows = self._rows.get(device)
        if rows is None or rows[2] == len(rows[1]):
            rows = self._grown(device, rows)
        flat, at = rows[1], rows[2]
        flat[at], flat[at + 1] = packed, address
        rows[2] = at + 4

    def _grown(self, device: int, rows: list[Any] | None) -> list[Any]:
        size = 16 if rows is None else 2 * len(rows[0])
        array = np.zeros((size, 4), dtype=np.uint64)
        if rows is not None:
            array[: len(rows[0])] = rows[0]
        flat: Any = array.reshape(-1)
        grown = [array, memoryview(flat), 0 if rows is None else rows[2]]
        self._rows[device] = grown
        return grown

    def capture(self, factor: float = 1.0, divisor: Any = None) -> int:
        """Captures the rows added since the last call, and forgets them; returns how many.

        Their values are multiplied by `factor`, and divided by `divisor`, a float32 on the same device.
        """
        count = 0
        for device, rows in self._rows.items():
            used = rows[2] >> 2
            if not used:
                continue
            rows[2] = 0
            count += used
            scale = 0 if divisor is None else divisor.data_ptr()
            self._session.capture_on_device(rows[0], used, device, _raw_stream(device), factor, scale)
        return count

    def one(self, number: int, layout: int, tensor: Any, factor: float = 1.0, divisor: Any = None) -> None:
        """Captures one tensor now."""
        self.begin()
        self.add(number | layout << 32, tensor)
        self.capture(factor, divisor)


class DeviceBorders:
    """Tells the session where phases of the training begin, and steps end, in the work of one device."""

    __slots__ = ("_device", "_session")

    def __init__(self, session: Session, device: int) -> None:
        self._session = session
        self._device = device

    @staticmethod
    def of(session: Session, models: Iterable[Any]) -> DeviceBorders | None:
        """Returns those of the device on which the first parameter is; None if the session does not read it."""
        if session.reads_accelerators:
            for model in models:
                for parameter in model.parameters():
                    tensor = getattr(parameter, "_local_tensor", parameter)
                    return DeviceBorders(session, tensor.get_device()) if is_on_device(tensor) else None
        return None

    def begins(self, phase: int) -> None:
        """Called when a phase begins, on the thread that trains."""
        self._session.begin_phase_on_device(phase, self._device, _raw_stream(self._device))

    def ends(self) -> None:
        """Called when a step ends."""
        self._session.end_step_on_device(self._device, _raw_stream(self._device))


def hash_on_device(session: Session, tensor: Any, seed: int, nbytes: int, parts: int, stride: int) -> int:
    """Returns what stands for a hash of parts of a tensor's memory, which arrives later; 0 if it cannot be read."""
    device = tensor.get_device()
    return session.hash_on_device(
        seed, address_of(tensor), nbytes, parts, stride, device, _raw_stream(device)
    )


class LateBytes:
    """A few elements of tensors on one accelerator, as they are now in the order of its work, which come later."""

    __slots__ = ("_read", "_session")

    def __init__(self, session: Session, tensors: list[Any], elements: int) -> None:
        """Reads up to so many elements of each, in eight places; the tensors are dense and have memory."""
        device = tensors[0].get_device()
        ranges: list[int] = []
        for tensor in tensors:
            size, held, address = tensor.element_size(), tensor.numel(), address_of(tensor)
            count = 1 if held <= elements else _PLACES
            part = held if held <= elements else elements // count
            for place in range(count):
                at = place * (held - part) // max(count - 1, 1)
                ranges += (address + at * size, part * size)
        self._session = session
        self._read = session.read_on_device(ranges, device, _raw_stream(device))

    def take(self) -> bytes | None:
        """Returns them, tensor by tensor; None while they are on their way; nothing if they were lost. Ask no more
        after that.
        """
        return self._session.take_read(self._read) if self._read else b""


class Unchanged:
    """A tensor that may be read later, if it still exists, was not changed in place and has the same memory.

    Assignments to ``.data``, as by ``module.half()``, change the memory and count no change.
    """

    __slots__ = ("_memory", "_tensor")

    def __init__(self, tensor: Any) -> None:
        counted = not tensor.is_inference()
        self._tensor = weakref.ref(tensor) if counted else None
        self._memory = _memory_of(tensor) if counted else None

    def __call__(self) -> Any:
        """Returns the tensor; None if it is gone, or its values may be others."""
        tensor = None if self._tensor is None else self._tensor()
        return tensor if tensor is not None and _memory_of(tensor) == self._memory else None


def _memory_of(tensor: Any) -> tuple[Any, ...]:
    return tensor._version, address_of(tensor), tensor.dtype, tensor.shape, tensor.stride()


class DeviceScalar:
    """A number in the memory of an accelerator, times a factor. Keeps its memory, and no graph.

    Tensors of ``torch.inference_mode`` count no changes, so theirs are to be recorded at once.
    """

    __slots__ = ("_address", "_code", "_device", "_factor", "_storage", "_tensor", "_version")

    def __init__(self, tensor: Any) -> None:
        self._storage = tensor.untyped_storage()
        self._address = tensor.data_ptr()
        self._device = tensor.get_device()
        self._code = DTYPE_CODES[tensor.dtype]
        self._factor = 1.0
        self._tensor = weakref.ref(tensor)
        self._version = None if tensor.is_inference() else tensor._version

    @property
    def lasts(self) -> bool:
        """Whether it may be recorded later: a change in place would be noticed."""
        return self._version is not None

    def __truediv__(self, divisor: float) -> DeviceScalar:
        """Returns the number divided by another."""
        quotient = object.__new__(DeviceScalar)
        for name in self.__slots__:
            setattr(quotient, name, getattr(self, name))
        quotient._factor = self._factor / divisor
        return quotient

    def record(self, session: Session, number: int, layout: int) -> bool:
        """Records the number as that of a tensor; False if it was changed in place since it was seen."""
        tensor = self._tensor()
        if self._version is not None and tensor is not None and tensor._version != self._version:
            return False
        stream = _raw_stream(self._device)
        session.scalar_on_device(
            number, layout, self._code, self._address, self._device, stream, self._factor
        )
        return True


def scalar_of(tensor: Any) -> float | DeviceScalar | None:
    """Returns the value of a dense tensor with one element; for one on an accelerator, what arrives later; None if
    it cannot be read.
    """
    value = read_scalar(tensor)
    if value is not None or not is_on_device(tensor):
        return value
    if tensor.numel() != 1 or tensor.dtype not in _NUMBERS or tensor.is_neg():
        return None
    return DeviceScalar(tensor) if address_of(tensor) else None


def record_number(
    session: Session, layouts: Layouts, number: int, value: float | DeviceScalar | None
) -> None:
    """Records a number; a gap where it could not be read, or was changed in place since it was seen."""
    if value is not None and not isinstance(value, DeviceScalar):
        session.scalar(number, value)
    elif value is None or not value.record(session, number, layouts.scalar(_FLOAT32)):
        session.gap(number, int(GapReason.UNSUPPORTED), 0, 1)


_FLOAT32 = DTYPE_CODES[torch.float32]
