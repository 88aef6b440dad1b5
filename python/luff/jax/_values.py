"""Reads arrays of JAX where they are: in place on the CPU, each shard separately. Donated arrays are gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from luff._arrays import Arrays, dtype_code
from luff._codes import Form, GapReason
from luff._hook import Session
from luff.jax._summaries import Summaries, rows_of, summaries_of

__all__ = ["Reader", "Tensors", "is_gone"]

_HOST, _SHARDS, _DEVICE = 1, 2, 3
_MAX_KNOWN = 4096
_ARRAY: Any = jax.Array
_SUMMARY = int(Form.SUMMARY)


def is_gone(value: Any) -> bool:
    """Whether the array was donated to a computation, or deleted."""
    return isinstance(value, _ARRAY) and value.is_deleted()


@dataclass
class Tensors:
    """Tensors of one tree, in order: their numbers, and how to define them or their shards."""

    numbers: list[int]  # -1: not defined yet; a sharded tensor never is, only its shards are
    defined: list[tuple[str, int, str, str]]  # name, role, path and type of the module


class Reader:
    """Captures many arrays in one call.

    Parameters
    ----------
    session, arrays
        Where values go.
    """

    def __init__(self, session: Session, arrays: Arrays) -> None:
        self._session = session
        self._arrays = arrays
        self._places: dict[int, tuple[Any, int]] = {}  # by id of the sharding, which is kept alive
        self._layouts: dict[int, tuple[Any, int]] = {}  # by id of the abstract value, which is kept alive
        self._shards: dict[Any, int] = {}
        self._summarize: Any = None
        self._types: set[type] = set()  # known array types: an isinstance check with jax.Array costs more
        self._table = np.zeros((256, 4), dtype=np.uint64)

    def capture(self, tensors: Tensors, values: Sequence[Any]) -> None:
        """Captures what is due of the values; a value that cannot be read becomes a gap."""
        numbers = tensors.numbers
        try:
            jax.block_until_ready(values)
        except Exception:  # one was donated: handled below
            jax.block_until_ready([v for v in values if isinstance(v, _ARRAY) and not v.is_deleted()])
        heads: list[int] = []
        addresses: list[int] = []
        remote: list[tuple[int, Any]] = []
        kept: list[Any] = []  # keeps arrays alive during the call
        for at, value in enumerate(values):
            number = numbers[at]
            is_array = type(value) in self._types or self._is_array(value)
            place = self._place(value) if is_array else _HOST
            if place == _SHARDS and not value.is_deleted():
                self._capture_shards(tensors.defined[at], value, heads, addresses, kept)
                continue
            if number < 0:
                number = numbers[at] = self._arrays.number(*tensors.defined[at])
            if not is_array:
                if value is not None:
                    self._arrays.array(number, np.asarray(value))
                continue
            if value.is_deleted():
                self._session.gap(number, int(GapReason.NOT_SEEN), self._session.due_tensor(number), 1)
                continue
            if place == _HOST:
                layout = self._layout(value)
                if layout >= 0:
                    heads.append(number | layout << 32)
                    addresses.append(value.unsafe_buffer_pointer())
                    kept.append(value)
                else:
                    self._session.gap(number, int(GapReason.UNSUPPORTED), self._session.due_tensor(number), 1)
            elif (due := self._session.due_tensor(number)) & ~_SUMMARY:
                self._arrays.array(number, np.asarray(value))  # needs the whole value on the host
            elif due:
                remote.append((number, value))
        if remote:
            self._capture_remote(remote)
        if heads:
            count = len(heads)
            if len(self._table) < count:
                self._table = np.zeros((2 * count, 4), dtype=np.uint64)
            self._table[:count, 0] = heads
            self._table[:count, 1] = addresses
            self._session.capture(self._table[:count])

    def _capture_remote(self, remote: list[tuple[int, Any]]) -> None:
        """Computes summaries of an accelerator's arrays on the accelerator, in one call."""
        if self._summarize is None:
            self._summarize = jax.jit(summaries_of)
        heads = []
        values = []
        for number, value in remote:
            layout = self._layout(value)
            if layout < 0:
                self._session.gap(number, int(GapReason.UNSUPPORTED), _SUMMARY, 1)
                continue
            heads.append(number | layout << 32)
            values.append(value)
        if heads:
            rows = rows_of(*self._summarize(values))
            self._session.capture_summaries(np.array(heads, dtype=np.uint64), rows)

    def capture_summaries(self, tensors: Tensors, summaries: Summaries) -> None:
        """Captures summaries that a compiled function has returned."""
        heads, kept = [], []
        for at, (shape, dtype) in enumerate(summaries.kinds):
            if tensors.numbers[at] < 0:
                tensors.numbers[at] = self._arrays.number(*tensors.defined[at])
            code = dtype_code(jax.numpy.dtype(dtype))
            if code is None:
                self._session.gap(tensors.numbers[at], int(GapReason.UNSUPPORTED), _SUMMARY, 1)
                continue
            heads.append(tensors.numbers[at] | self._arrays.layout(code, shape) << 32)
            kept.append(at)
        if heads:
            rows = rows_of(summaries.numbers, summaries.counts)
            self._session.capture_summaries(np.array(heads, dtype=np.uint64), rows[kept])

    def _is_array(self, value: Any) -> bool:
        if not isinstance(value, _ARRAY):
            return False
        if len(self._types) < 16:
            self._types.add(type(value))
        return True

    def _place(self, value: Any) -> int:
        sharding = value.sharding
        known = self._places.get(id(sharding))
        if known is None:
            devices = sharding.device_set
            on_host = all(device.platform == "cpu" for device in devices)
            place = _DEVICE if not on_host else _HOST if len(devices) == 1 else _SHARDS
            if len(self._places) >= _MAX_KNOWN:
                self._places.clear()
            known = self._places[id(sharding)] = (sharding, place)
        return known[1]

    def _layout(self, value: Any) -> int:
        aval = value.aval
        known = self._layouts.get(id(aval))
        if known is None:
            code = (
                None if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else dtype_code(value.dtype)
            )
            layout = -1 if code is None else self._arrays.layout(code, tuple(value.shape))
            if len(self._layouts) >= _MAX_KNOWN:
                self._layouts.clear()
            known = self._layouts[id(aval)] = (aval, layout)
        return known[1]

    def _capture_shards(
        self,
        defined: tuple[str, int, str, str],
        value: Any,
        heads: list[int],
        addresses: list[int],
        kept: list[Any],
    ) -> None:
        """Captures each shard of this process as a tensor of its own: nothing is gathered."""
        shards = [shard for shard in value.addressable_shards if shard.replica_id == 0]
        if value.is_fully_replicated:
            shards = list(value.addressable_shards)[:1]
        for shard in shards:
            data = shard.data
            if data.shape == value.shape:
                name, layout = defined[0], self._layout(data)
            else:
                offset = [int(part.start or 0) for part in shard.index]
                name = f"{defined[0]}/shard{'_'.join(str(start) for start in offset)}"
                layout = self._shard_layout(data, value.shape, offset)
            number = self._arrays.number(name, *defined[1:])
            if layout < 0:
                self._session.gap(number, int(GapReason.UNSUPPORTED), self._session.due_tensor(number), 1)
                continue
            heads.append(number | layout << 32)
            addresses.append(data.unsafe_buffer_pointer())
            kept.append(data)

    def _shard_layout(self, data: Any, whole: tuple[int, ...], offset: list[int]) -> int:
        code = dtype_code(data.dtype)
        if code is None:
            return -1
        key = (code, data.shape, whole, tuple(offset))
        layout = self._shards.get(key)
        if layout is None:
            layout = self._session.define_shard_layout(code, list(data.shape), None, list(whole), offset)
            if len(self._shards) < _MAX_KNOWN:
                self._shards[key] = layout
        return layout
