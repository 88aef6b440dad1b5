"""Reads tensors as memory: dtype, layout, address. Uses no torch operation, only attributes.

A tensor is readable if it is dense, on the CPU, and its memory contains its values (no pending conjugation, no
wrapper whose data are elsewhere).
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from luff._codes import DType
from luff._hook import Session

__all__ = [
    "INTEGERS",
    "LOW",
    "PLAIN_TYPES",
    "Array",
    "Budget",
    "Layouts",
    "address_of",
    "array_of",
    "array_view",
    "bytes_spanned",
    "copy_of_rows",
    "float_bits",
    "gradient_of",
    "is_readable",
    "local_part",
    "numbers_in",
    "read_scalar",
]

Array = NDArray[Any]


DTYPE_CODES = {
    getattr(torch, code.name.lower()): int(code)
    for code in DType
    if isinstance(getattr(torch, code.name.lower(), None), torch.dtype)
}
MAX_RANK = 8
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter))


def local_part(tensor: Any) -> tuple[Any, tuple[tuple[int, ...], tuple[int, ...]] | None]:
    """Returns the tensor whose memory this process holds, and (global shape, offset) if it is a shard.

    A tensor that is not a DTensor is its own local part.
    """
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        return tensor, None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local.shape):
        return None, None
    return local, (tuple(tensor.shape), tuple(offset))


class Layouts:
    """Layout numbers of a session by (dtype, shape, strides). Bounded: cleared when it grows too large."""

    LIMIT = 1 << 16

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[Any, int] = {}

    def find(self, tensor: Any) -> int:
        """Returns the number of the tensor's layout, or -1 if its memory cannot be read as it is."""
        key = (tensor.dtype, tensor.shape, tensor.stride())
        number = self._known.get(key)
        if number is None:
            # is_neg: a pending negation of real numbers, which occurs where a complex tensor was conjugated.
            number = -1 if tensor.is_neg() else self._define(key, *key)
        if key[0].is_complex and tensor.is_conj():
            return -1
        return number

    def find_shard(self, tensor: Any, place: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
        """Returns the same for the local part of a sharded tensor."""
        key = (tensor.dtype, tensor.shape, tensor.stride(), place)
        number = self._known.get(key)
        return self._define(key, *key) if number is None else number

    def find_rows(self, dtype: Any, shape: Any, strides: Any, rows: int) -> int:
        """Returns the layout of the first rows (axis 0) of a readable tensor, or of all of it if it has no more."""
        whole = not shape or rows >= shape[0]
        key = (dtype, shape, strides) if whole else (dtype, shape, strides, rows)
        number = self._known.get(key)
        if number is not None:
            return number
        if whole:
            return self._define(key, *key)
        return self._define(key, dtype, (rows, *shape[1:]), strides, (shape, [0] * len(shape)))

    def find_local(self, tensor: Any) -> tuple[int, Any]:
        """Returns layout and tensor of the local part of a tensor that is not readable
        itself; -1 if there is none.
        """
        local, place = local_part(tensor)
        if local is None or not is_readable(local):
            return -1, tensor
        return self.find(local) if place is None else self.find_shard(local, place), local

    def scalar(self, dtype: int) -> int:
        """Returns the layout of one element of the dtype (a code)."""
        key = (dtype,)
        number = self._known.get(key)
        return self._remember(key, self._session.define_layout(dtype, [])) if number is None else number

    def _define(self, key: Any, dtype: Any, shape: Any, strides: Any, place: Any = None) -> int:
        """Defines a layout; `place` is the shape of the whole tensor that it is part of, and the offset in it."""
        code = DTYPE_CODES.get(dtype, 0)
        if not code or len(shape) > MAX_RANK:
            return -1
        if place is None:
            number = self._session.define_layout(code, list(shape), list(strides))
        else:
            number = self._session.define_shard_layout(code, list(shape), list(strides), *map(list, place))
        return self._remember(key, number)

    def _remember(self, key: Any, number: int) -> int:
        if len(self._known) >= self.LIMIT:
            self._known.clear()
        self._known[key] = number
        return number


def is_readable(tensor: Any) -> bool:
    """Whether the memory at `data_ptr()` holds the tensor's values."""
    return type(tensor) in PLAIN_TYPES and tensor.is_cpu and tensor.layout is torch.strided


INTEGERS = {
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NUMPY = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}


# A tensor's address is its storage's plus an offset. Where the storage has none, the offset alone is below this; only
# then is it worth two calls more to tell such a tensor from memory that begins as low (a program that is no PIE).
LOW = 1 << 40


def gradient_of(parameter: Any) -> Any:
    """Returns the gradient of a tensor; None for one that an operation has made, which torch would warn about: a script
    may put such tensors in the place of a module's parameters.
    """
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def address_of(tensor: Any) -> int:
    """Returns where the memory of a tensor begins; 0 if it has none, as inside a transform (vmap, grad), or where it
    was given back (FSDP): ``data_ptr()`` of a view is then its offset.
    """
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:
        return 0
    if address < LOW and address == tensor.storage_offset() * tensor.element_size():
        return 0
    return address


class Budget:
    """The number of bytes that may still be examined."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes


def array_of(tensor: Any, budget: Budget | None = None) -> Array | None:
    """Returns the tensor's memory as an array (bfloat16: a copy as float32); None if it cannot be read."""
    if not isinstance(tensor, torch.Tensor) or not is_readable(tensor):
        return None
    dtype = tensor.dtype
    half = dtype is torch.bfloat16
    if dtype not in _NUMPY and not half:
        return None
    if (dtype.is_complex and tensor.is_conj()) or tensor.is_neg():
        return None
    if tensor.numel() and not address_of(tensor):
        return None
    if budget is not None:
        budget.left -= tensor.numel() * tensor.element_size()
        if budget.left < 0:
            return None
    array = array_view(tensor, np.uint16 if half else _NUMPY[dtype])
    return (array.astype(np.uint32) << 16).view(np.float32) if half else array


def array_view(tensor: Any, kind: Any) -> Array:
    """Returns the memory of a readable tensor, with its strides, as an array of a NumPy type of the same size."""
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), kind)
    size = tensor.element_size()
    memory: Any = (ctypes.c_uint8 * bytes_spanned(tensor)).from_address(tensor.data_ptr())
    strides = tuple(step * size for step in tensor.stride())
    array: Array = np.ndarray(tuple(tensor.shape), kind, memory, 0, strides)
    return array


def copy_of_rows(tensor: Any, rows: int) -> Array | None:
    """Returns a copy of the memory of the first rows (axis 0), as words of the values' size; None if it cannot be
    read.
    """
    if not is_readable(tensor) or not tensor.shape:
        return None
    word = _WORDS.get(tensor.element_size())
    if (
        word is None
        or not address_of(tensor)
        or tensor.is_neg()
        or (tensor.is_complex() and tensor.is_conj())
    ):
        return None
    return array_view(tensor, word)[:rows].copy()


def numbers_in(words: Array, dtype: Any) -> Array | None:
    """Returns the real numbers that such words hold (bfloat16: as float32); None for another type."""
    if dtype is torch.bfloat16:
        return (words.astype(np.uint32) << 16).view(np.float32)
    kind = INTEGERS.get(dtype) or (None if dtype.is_complex else _NUMPY.get(dtype))
    return None if kind is None else words.view(kind)


def bytes_spanned(tensor: Any) -> int:
    """Returns the bytes from a tensor's first value to the end of its last, including gaps between its values."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


_NUMBERS: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int64: ctypes.c_int64,
    torch.int32: ctypes.c_int32,
}


def read_scalar(tensor: Any) -> float | None:
    """Returns the value of a dense CPU tensor with one element, read from memory; None if it cannot be read."""
    if not is_readable(tensor) or tensor.numel() != 1:
        return None
    address = address_of(tensor)
    if not address:
        return None
    kind = _NUMBERS.get(tensor.dtype)
    if kind is not None:
        return float(kind.from_address(address).value)
    if tensor.dtype is torch.bfloat16:
        bits = ctypes.c_uint16.from_address(address).value << 16
        return float(ctypes.c_float.from_buffer(ctypes.c_uint32(bits)).value)
    if tensor.dtype is torch.float16:
        return float(struct.unpack("e", ctypes.string_at(address, 2))[0])
    return None


def float_bits(value: float) -> int:
    """Returns the bits of a float64, as events contain them."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
