"""Captures arrays in one call: one row per array, whose layout is looked up only when it changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from luff._arrays import Arrays, dtype_code
from luff._codes import Form, GapReason, Role
from luff._hook import Session
from luff._rows import rows_that_fit

__all__ = ["Spec", "Table", "tell_missing"]

_SAMPLE = int(Role.SAMPLE)


class Spec(NamedTuple):
    """Name and role of a tensor, and path and type of the layer that it belongs to."""

    name: str
    role: int
    path: str = ""
    kind: str = ""


class Table:
    """Rows of tensors that are captured together.

    Parameters
    ----------
    arrays
        Where the tensors are defined.
    specs
        The tensor of each row. Of samples, only the first rows are recorded (docs/spec/evidence.md).
    """

    def __init__(self, arrays: Arrays, specs: list[Spec]) -> None:
        self._arrays = arrays
        self._numbers = [arrays.number(spec.name, spec.role, spec.path, spec.kind) for spec in specs]
        self._samples = [spec.role == _SAMPLE for spec in specs]
        self._rows = np.zeros((max(len(specs), 1), 4), dtype=np.uint64)
        flat: Any = self._rows.reshape(-1)
        self._flat = memoryview(flat)
        self._known: list[tuple[Any, Any, int]] = [(None, None, -1)] * len(specs)

    def capture(self, values: list[Any], factor: float = 1.0) -> None:
        """Captures an array for each row, multiplied by `factor`; None means that the row has no value now."""
        flat, known, at, held = self._flat, self._known, 0, []
        for index, array in enumerate(values):
            if array is None:
                continue
            shape, dtype, packed = known[index]
            if array.shape != shape or array.dtype != dtype:
                packed = self._learn(index, array)
            if packed < 0:
                self._missing(index)
                continue
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
            held.append(array)
            flat[at] = packed
            flat[at + 1] = array.__array_interface__["data"][0]
            at += 4
        if at and factor == 1.0:
            self._arrays.session.capture(self._rows, at >> 2)
        elif at:
            self._arrays.session.capture_scaled(self._rows, factor, at >> 2)

    def _learn(self, index: int, array: Any) -> int:
        code = dtype_code(array.dtype)
        layout = -1
        if code is not None:
            kept = self._first_rows(array) if self._samples[index] else array.shape
            if kept == array.shape:
                layout = self._arrays.layout(code, array.shape)
            elif kept:
                layout = self._arrays.session.define_shard_layout(
                    code, list(kept), None, list(array.shape), [0] * array.ndim
                )
        packed = -1 if layout < 0 else self._numbers[index] | layout << 32
        self._known[index] = (array.shape, array.dtype, packed)
        return packed

    @staticmethod
    def _first_rows(array: Any) -> tuple[int, ...]:
        if not array.shape or not array.nbytes:
            return tuple(array.shape)
        rows = rows_that_fit(array.shape, array.nbytes)
        return (rows, *array.shape[1:]) if rows else ()

    def _missing(self, index: int) -> None:
        tell_missing(self._arrays.session, self._numbers[index])


def tell_missing(session: Session, number: int, reason: int = int(GapReason.UNSUPPORTED)) -> None:
    """Records a gap if a tensor is due but has no array."""
    due = session.due_tensor(number)
    if due:
        session.gap(number, reason, due & int(Form.RAW), 1)
