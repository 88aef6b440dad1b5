"""Numbers and values that the user records; those given between steps are kept for the next. Bounded."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from luff._arrays import dtype_code
from luff._codes import GapReason, Role
from luff.torch.capture._memory import bytes_spanned, is_readable, local_part
from luff.torch.evidence._step import MAX_WAITING, StepContext

__all__ = ["UserValues"]

_MAX_BYTES = 64 << 20


class UserValues:
    """Records into the open step, or keeps copies for the next step that begins."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._scalars: list[tuple[int, float]] = []
        self._values: list[tuple[int, int, bytes]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._scalars or self._values)

    def scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME``."""
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None:
            return
        number = recorder.number(f"scalar/{name}", int(Role.SCALAR))
        if self._step_is_open():
            session.scalar(number, value)
        elif len(self._scalars) < MAX_WAITING:
            self._scalars.append((number, value))

    def tensor(self, name: str, value: Any) -> None:
        """Records a tensor or an array under `name`.

        Raises
        ------
        TypeError
            If its memory cannot be read, or its dtype is not captured.
        """
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None:
            return
        held: Any  # keeps the memory alive until it is captured
        if isinstance(value, torch.Tensor):
            held, _ = local_part(value)
            if held is None or not is_readable(held.data if held.requires_grad else held):
                raise TypeError("a tensor that is not dense CPU memory")
            layout, address, size = recorder.layouts.find(held), held.data_ptr(), bytes_spanned(held)
        else:
            held = np.ascontiguousarray(value)
            code = dtype_code(held.dtype)
            if code is None:
                raise TypeError(f"dtype {held.dtype} is not captured")
            layout = session.define_layout(code, list(held.shape))
            address, size = int(held.__array_interface__["data"][0]), held.nbytes
        if layout < 0:
            raise TypeError("a dtype that is not captured")
        number = recorder.number(name, int(Role.CUSTOM))
        if self._step_is_open():
            session.capture_one(number, layout, address)
        elif self._bytes + size <= _MAX_BYTES and len(self._values) < MAX_WAITING:
            self._bytes += size
            self._values.append((number, layout, ctypes.string_at(address, size)))
        else:
            session.gap(number, int(GapReason.TOO_MANY), 0, 1)

    def hand_over(self) -> None:
        """Puts all that was kept into the step that has begun."""
        session = self._context.session
        if session is None:
            return
        for number, value in self._scalars:
            session.scalar(number, value)
        for number, layout, data in self._values:
            buffer = np.frombuffer(data, dtype=np.uint8)
            session.capture_one(number, layout, int(buffer.__array_interface__["data"][0]))
        self._scalars.clear()
        self._values.clear()
        self._bytes = 0

    def _step_is_open(self) -> bool:
        step = self._context.step
        return step is not None and step.begun and step.decided
