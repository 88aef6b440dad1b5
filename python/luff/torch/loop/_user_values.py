"""Scalars and values given by the user before the step they belong to can take them. Bounded."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from luff._codes import GapReason, Role
from luff._hook import Session
from luff.torch.evidence._step import MAX_WAITING

if TYPE_CHECKING:
    from luff.torch.loop._machine import Machine

__all__ = ["Given"]

_MAX_BYTES = 64 << 20


class Given:
    """What the user gives: into the open step, or kept for the next step that begins."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scalars: list[tuple[int, float]] = []
        self._values: list[tuple[int, int, bytes]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._scalars or self._values)

    def scalar(self, name: str, value: float) -> None:
        """A number given by the user."""
        machine = self._machine
        if machine.ensure_session() is None or machine.recorder is None or machine.session is None:
            return
        number = machine.recorder.number(f"scalar/{name}", int(Role.SCALAR))
        if self._open():
            machine.session.scalar(number, value)
        else:
            self.keep_scalar(number, value)

    def tensor(self, name: str, role: int, layout: int, data: Any) -> None:
        """A value given by the user, as (address, size) of live memory."""
        session, recorder = self._machine.session, self._machine.recorder
        if session is None or recorder is None:
            return
        number = recorder.number(name, role)
        address, size = data
        if self._open():
            session.capture_one(number, layout, address)
        elif self._bytes + size <= _MAX_BYTES and len(self._values) < MAX_WAITING:
            self._bytes += size
            self._values.append((number, layout, ctypes.string_at(address, size)))
        else:
            session.gap(number, int(GapReason.TOO_MANY), 0, 1)

    def keep_scalar(self, number: int, value: float) -> None:
        """A number for the next step."""
        if len(self._scalars) < MAX_WAITING:
            self._scalars.append((number, value))

    def hand_over(self, session: Session) -> None:
        """Puts all of it into the step that has begun."""
        for number, value in self._scalars:
            session.scalar(number, value)
        for number, layout, data in self._values:
            buffer = np.frombuffer(data, dtype=np.uint8)
            session.capture_one(number, layout, int(buffer.__array_interface__["data"][0]))
        self._scalars.clear()
        self._values.clear()
        self._bytes = 0

    def _open(self) -> bool:
        step = self._machine.step
        return step is not None and step.begun and step.decided
