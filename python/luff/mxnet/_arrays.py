"""Reads arrays of MXNet.

MXNet computes asynchronously: reading an array waits until it has been computed. So only what is due is read. A large
array is read in place. Small arrays, and those that oneDNN holds in a layout of its own, are copied as `asnumpy`
does, since asking for their address would change their layout.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray import NDArray

from luff._arrays import Arrays, dtype_code
from luff._codes import DType, Form, GapReason

__all__ = ["Reader", "arrays_in", "bytes_of"]

_MAX_DENSE_BYTES = 64 << 20  # largest sparse array, in bytes, that is made dense to be read
_ALIGN = 64
_DIRECT_BYTES = 16 << 10  # arrays from this size on are read in place
_ON_CPU = 1  # DLPack's device number
_MAX_COPIED = 65536
_BFLOAT16 = int(DType.BFLOAT16)
_UNSUPPORTED, _NOT_SEEN = int(GapReason.UNSUPPORTED), int(GapReason.NOT_SEEN)
_HASH_BYTES = 4096
_MASK = 0xFFFFFFFFFFFFFFFF


def arrays_in(value: Any, limit: int = 64) -> list[NDArray]:
    """Returns the arrays in a value, with lists and tuples flattened; symbols and everything else are left out."""
    if isinstance(value, NDArray):
        return [value]
    found: list[NDArray] = []
    if isinstance(value, list | tuple):
        for item in value:
            if len(found) >= limit:
                break
            found += arrays_in(item, limit - len(found))
    return found


def bytes_of(array: Any) -> int:
    """Returns the size of an array in bytes, as if it were dense."""
    return int(array.size) * int(np.dtype(array.dtype).itemsize)


class Reader:
    """Copies arrays into one buffer, for one call of the session at a time.

    Attributes
    ----------
    failure
        An error of the training itself. MXNet raises it once, at the first wait for an array, so the training would
        never see it. The caller must raise it.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._session = arrays.session
        self._memory = np.empty(0, dtype=np.uint8)
        self._address = self._start = 0
        self._codes: dict[Any, tuple[int, int]] = {}  # dtype -> code (-1: none), size of an element
        self.failure: BaseException | None = None
        self._read_bytes = 0
        self._copied: set[int] = set()  # numbers of tensors that cannot be read in place

    def capture(self, number: int, array: Any) -> bool:
        """Captures what is due of an array; an array that cannot be read becomes a gap."""
        if not self._session.due_tensor(number):
            return False
        if array.stype != "default":
            array = self._dense(array)
        code, width = (-1, 0) if array is None else self._code(array.dtype)
        if array is None or code < 0:
            self._session.gap(number, _UNSUPPORTED, int(Form.RAW), 1)
            return False
        shape = array.shape
        layout = self._arrays.layout(code, shape)
        if layout < 0:
            self._session.gap(number, _UNSUPPORTED, int(Form.RAW), 1)
            return False
        return self._hand_over(number, layout, array, width)

    def rows(self, number: int, array: Any, rows: int) -> None:
        """Captures the first rows of an array (axis 0), as a shard of the whole."""
        shape = array.shape
        code, width = self._code(array.dtype) if array.stype == "default" else (-1, 0)
        if code < 0:
            self._session.gap(number, _UNSUPPORTED, int(Form.RAW), 1)
            return
        if not shape or rows >= shape[0]:
            self.capture(number, array)
            return
        with autograd.pause(train_mode=autograd.is_training()):
            part = array[:rows]
        kept = (rows, *shape[1:])
        layout = self._session.define_shard_layout(code, kept, None, shape, [0] * len(shape))
        self._hand_over(number, layout, part, width)

    def mean(self, array: Any) -> float | None:
        """Returns the mean of all elements, in double precision; None if the array cannot be read."""
        if array.stype != "default" or not array.size:
            return None
        code, width = self._code(array.dtype)
        if code < 0 or not self._read(array, array.size, width):
            return None
        values = self._held()
        if code == _BFLOAT16:
            values = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = values.view(array.dtype)
        with np.errstate(all="ignore"):
            return float(np.mean(values, dtype=np.float64))

    def is_nonzero(self) -> bool:
        """Whether the array that was read last has a byte that is not zero."""
        return bool(self._held().any())

    def hash(self, array: Any) -> int | None:
        """Returns a hash of shape and content, of three parts if the array is large; None if it is not in the CPU's
        memory.
        """
        if array.stype != "default" or array.context.device_type != "cpu":
            return None
        size = array.size
        _, width = self._code(array.dtype)
        if not size or not width:
            return None
        value = hash(array.shape) & _MASK
        count = _HASH_BYTES // width
        if size <= 4 * count:
            address = self._read(array, size, width)
            return value ^ self._session.hash(address, size * width) if address else None
        with autograd.pause(train_mode=autograd.is_training()):
            flat = array.reshape((-1,))
            parts = [flat[start : start + count] for start in (0, (size - count) // 2, size - count)]
        for part in parts:
            address = self._read(part, count, width)
            if not address:
                return None
            value = (value * 31 + self._session.hash(address, count * width)) & _MASK
        return value

    # Inside ----------------------------------------------------------------------------------------------------

    def _code(self, dtype: Any) -> tuple[int, int]:
        found = self._codes.get(dtype)
        if found is None:
            kind = np.dtype(dtype)
            code = _BFLOAT16 if kind.names == ("bfloat16",) else dtype_code(kind)
            found = self._codes[dtype] = (-1 if code is None else code, kind.itemsize)
        return found

    def _hand_over(self, number: int, layout: int, array: Any, width: int) -> bool:
        if array.size * width >= _DIRECT_BYTES and number not in self._copied:
            if self._directly(number, layout, array):
                return True
            if self.failure is not None:
                self._session.gap(number, _NOT_SEEN, int(Form.RAW), 1)
                return False
            if len(self._copied) < _MAX_COPIED:
                self._copied.add(number)
        address = self._read(array, array.size, width)
        if address:
            self._session.capture_one(number, layout, address)
        else:
            self._session.gap(number, _NOT_SEEN, int(Form.RAW), 1)
        return bool(address)

    def _directly(self, number: int, layout: int, array: Any) -> bool:
        """Captures an array in place. False if it is not in the CPU's memory, or in a layout of oneDNN's."""
        held = ctypes.c_void_p()
        try:
            check_call(_LIB.MXNDArrayWaitToRead(array.handle))
        except MXNetError as error:
            self.failure = self.failure or error
            return False
        if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(held)) != 0 or not held.value:
            return False
        try:
            # Offsets in a DLTensor: data, (device, its number), dimensions, (type), shape, strides, offset.
            if ctypes.c_int32.from_address(held.value + 8).value != _ON_CPU:
                return False
            start = ctypes.c_void_p.from_address(held.value).value or 0
            address = start + ctypes.c_uint64.from_address(held.value + 40).value
            if start:
                self._session.capture_one(number, layout, address)
            return bool(start)
        finally:
            _LIB.MXNDArrayCallDLPackDeleter(held)

    def _read(self, array: Any, size: int, width: int) -> int:
        """Returns the address of a copy, valid until the next call; 0 if the computation of the array has failed."""
        if size * width + _ALIGN > self._memory.nbytes:
            self._memory = np.empty(size * width + _ALIGN, dtype=np.uint8)
            start = int(self._memory.__array_interface__["data"][0])
            self._start = -start % _ALIGN
            self._address = start + self._start
        self._read_bytes = size * width
        if size:
            try:
                check_call(
                    _LIB.MXNDArraySyncCopyToCPU(
                        array.handle, ctypes.c_void_p(self._address), ctypes.c_size_t(size)
                    )
                )
            except MXNetError as error:
                self.failure = self.failure or error
                return 0
        return self._address

    def _held(self) -> Any:
        return self._memory[self._start : self._start + self._read_bytes]

    @staticmethod
    def _dense(array: Any) -> Any:
        size = int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
        if size > _MAX_DENSE_BYTES:
            return None
        with autograd.pause(train_mode=autograd.is_training()):
            return array.tostype("default")
