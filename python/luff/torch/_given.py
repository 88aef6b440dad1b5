"""Scalars and values given by the user before the step they belong to can take them. Bounded."""

from __future__ import annotations

import ctypes

import numpy as np

from luff._codes import GapReason
from luff._hook import Session
from luff.torch._step import MAX_WAITING

__all__ = ["Given"]

_MAX_BYTES = 64 << 20


class Given:
    """What waits for the next step that has begun."""

    def __init__(self) -> None:
        self._scalars: list[tuple[int, float]] = []
        self._values: list[tuple[int, int, bytes]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._scalars or self._values)

    def scalar(self, number: int, value: float) -> None:
        """Keeps a number."""
        if len(self._scalars) < MAX_WAITING:
            self._scalars.append((number, value))

    def value(self, session: Session, number: int, layout: int, address: int, size: int) -> None:
        """Keeps a copy of a value; a gap where there is no room."""
        if self._bytes + size <= _MAX_BYTES and len(self._values) < MAX_WAITING:
            self._bytes += size
            self._values.append((number, layout, ctypes.string_at(address, size)))
        else:
            session.gap(number, int(GapReason.TOO_MANY), 0, 1)

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
