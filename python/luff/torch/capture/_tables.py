"""Tables of addresses: one row per tensor, filled again at every step and handed over in one call.

Addresses, dtypes, shapes and strides are read each time, since parameters move, change type, and get new gradients.
References are weak, so that Luff never keeps a model alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from luff._codes import GapReason
from luff._hook import Session
from luff.torch.capture._device import DeviceRows, is_on_device
from luff.torch.capture._memory import (
    DTYPE_CODES,
    LOW,
    Layouts,
    address_of,
    array_view,
    is_readable,
    local_part,
)

__all__ = ["Table"]

_REPLICA = 2  # kReplicaFlag of include/luff/capture/session.h
_LIVE_KEY = 1  # storage key of memory that is alive at the same time: parameters and buffers
_MAX_VALUES = 1 << 18  # most values of a sparse gradient that Luff sums itself
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_ELSEWHERE = -2  # instead of number and layout: the row was added to those of accelerators
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


class _Summed:
    """An array that takes the place of a tensor."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def data_ptr(self) -> int:
        """Returns the address of the first value."""
        return int(self.array.__array_interface__["data"][0]) if self.array.size else 0

    def numel(self) -> int:
        """Returns the number of values."""
        return int(self.array.size)


class Table:
    """Rows of tensors that are captured together.

    Parameters
    ----------
    session, layouts
        Where the tensors are defined.
    owners
        (tensor, number) pairs.
    gradients
        Whether the rows are the owners' gradients; owners without a gradient are left out.
    alias
        Whether all rows are alive together, so that rows with the same memory may be stored once.
    replica
        Whether another worker stores the values of all rows: only hashes of them are stored here.
    """

    def __init__(
        self,
        session: Session,
        layouts: Layouts,
        owners: Iterable[tuple[Any, int]],
        gradients: bool = False,
        alias: bool = False,
        replica: bool = False,
    ) -> None:
        self._session = session
        self._layouts = layouts
        self._gradients = gradients
        self._entries: list[list[Any]] = [
            [weakref.ref(owner), number, None, None, None, 0]
            for owner, number in owners
            if not gradients or owner.is_leaf or owner.retains_grad  # torch warns of the gradient of another
        ]
        size = len(self._entries)
        self._rows = np.zeros((max(size, 1), 4), dtype=np.uint64)
        self._rows[:, 2] = _LIVE_KEY if alias else 0
        self._rows[:, 3] = _REPLICA if replica else 0
        flat: Any = self._rows.reshape(-1)
        self._flat = memoryview(flat)
        self._devices: DeviceRows | None = None
        self._summed: list[Any] = []  # memory of our own that must live until it is captured
        self.dead = False

    def __len__(self) -> int:
        return len(self._entries)

    def version(self) -> int | None:
        """Returns a number that changes when the first trainable tensor of the table was changed in place."""
        for entry in self._entries:
            tensor = entry[0]()
            if tensor is not None and tensor.requires_grad:
                return int(tensor._version)
        return None

    def capture(self, factor: float = 1.0, divisor: Any = None) -> int:
        """Captures every row that now has a value; returns how many.

        `factor` multiplies the values (gradients that a fused optimizer has yet to unscale); `divisor`, a float32 on
        an accelerator, divides them. Rows on the CPU are then gaps.
        """
        flat, plain, gradients = self._flat, _PLAIN_TYPES, self._gradients
        if self._devices is not None:
            self._devices.begin()
        at = 0
        for entry in self._entries:
            tensor = entry[0]()
            if tensor is None:
                self.dead = True
                continue
            if gradients:
                tensor = tensor.grad
                if tensor is None:
                    continue
            try:
                if type(tensor) not in plain or not tensor.is_cpu:
                    packed, tensor = self._special(entry, tensor, divisor)
                    if packed == _ELSEWHERE:
                        continue
                else:
                    strides = tensor.stride()
                    if strides == entry[2] and tensor.dtype is entry[3] and tensor.shape == entry[4]:
                        packed = entry[5]
                    else:
                        packed = self._learn(entry, tensor, strides)
                        if packed < 0:
                            packed, tensor = self._sparse(entry, tensor)
                address = tensor.data_ptr() if packed >= 0 else 0
            except (RuntimeError, NotImplementedError, TypeError):  # sparse, uninitialized, or opaque
                packed, tensor = self._sparse(entry, tensor)
                address = tensor.data_ptr() if packed >= 0 else 0
            if 0 < address < LOW and type(tensor) is not _Summed:
                address = address_of(tensor)
            if packed < 0 or (not address and tensor.numel()):
                self._session.gap(entry[1], int(GapReason.UNSUPPORTED), 0, 1)
                continue
            flat[at] = packed
            flat[at + 1] = address
            at += 4
        count = at >> 2
        if count:
            if divisor is not None:
                self._gaps(count)
            elif factor == 1.0:
                self._session.capture(self._rows, count)
            else:
                self._session.capture_scaled(self._rows, factor, count)
        if self._summed:
            self._summed.clear()
        if self._devices is not None:
            count += self._devices.capture(factor, divisor)
        return count

    def _gaps(self, count: int) -> None:
        for row in self._rows[:count, 0].tolist():
            self._session.gap(row & 0xFFFFFFFF, int(GapReason.UNSUPPORTED), 0, 1)

    def _learn(self, entry: list[Any], tensor: Any, strides: Any) -> int:
        layout = self._layouts.find(tensor) if is_readable(tensor) else -1
        if layout < 0:
            return -1
        packed = int(entry[1]) | layout << 32
        if not tensor.dtype.is_complex:  # a conjugated view must be detected each time
            entry[2], entry[3], entry[4], entry[5] = strides, tensor.dtype, tensor.shape, packed
        return packed

    def _special(self, entry: list[Any], tensor: Any, divisor: Any) -> tuple[int, Any]:
        shard, place = local_part(tensor)
        if shard is not None and is_on_device(shard):
            return self._on_device(entry, shard, place, divisor), shard
        layout, local = self._layouts.find_local(tensor)
        return (-1, tensor) if layout < 0 else (int(entry[1]) | layout << 32, local)

    def _on_device(self, entry: list[Any], tensor: Any, place: Any, divisor: Any) -> int:
        """Adds a row to those of accelerators; -1 if its memory cannot be read as it is."""
        strides = tensor.stride()
        if divisor is not None and divisor.get_device() != tensor.get_device():
            return -1
        if place is not None:
            layout = self._layouts.find_shard(tensor, place)
        elif strides == entry[2] and tensor.dtype is entry[3] and tensor.shape == entry[4]:
            layout = entry[5] >> 32
        else:
            layout = self._layouts.find(tensor)
        if layout < 0:
            return -1
        packed = int(entry[1]) | layout << 32
        if place is None and not tensor.dtype.is_complex:
            entry[2], entry[3], entry[4], entry[5] = strides, tensor.dtype, tensor.shape, packed
        if self._devices is None:
            self._devices = DeviceRows(self._session)
        self._devices.add(packed, tensor)
        return _ELSEWHERE

    def _sparse(self, entry: list[Any], tensor: Any) -> tuple[int, Any]:
        """Returns the values of a sparse gradient: those in memory if it is coalesced, otherwise sums of our own."""
        try:
            if tensor.layout is not torch.sparse_coo or not tensor.is_cpu:
                return -1, tensor
            if not tensor.is_coalesced():
                if not self._session.due_tensor(entry[1]):
                    return -1, tensor
                summed = coalesced(tensor)
                if summed is None:
                    return -1, tensor
                layout = self._session.define_layout(DTYPE_CODES[tensor.dtype], list(summed.shape))
                values: Any = _Summed(summed)
                self._summed.append(values)
            else:
                values = tensor._values()
                layout = self._layouts.find(values)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError):
            return -1, tensor
        return (-1, tensor) if layout < 0 else (int(entry[1]) | layout << 32, values)


def coalesced(tensor: Any) -> Any:
    """Returns a gradient's values as the optimizer will see them: one row for each index, ordered by index.

    Returns
    -------
    numpy.ndarray or None
        None if it is too large, or its values are neither float32 nor float64.
    """
    indices, values = tensor._indices(), tensor._values()
    kind = _NUMPY.get(values.dtype)
    if kind is None or values.numel() > _MAX_VALUES or indices.numel() > _MAX_VALUES:
        return None
    if not values.numel():
        return np.zeros(tuple(values.shape), kind)
    where = np.ravel_multi_index(
        tuple(array_view(indices, np.int64)), tuple(tensor.shape[: indices.shape[0]])
    )
    order = np.argsort(where, kind="stable")
    where = where[order]
    first = np.flatnonzero(np.concatenate(([True], where[1:] != where[:-1])))
    return np.ascontiguousarray(np.add.reduceat(array_view(values, kind)[order], first, axis=0))
