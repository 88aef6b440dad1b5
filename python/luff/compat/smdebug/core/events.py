"""Records of event files: one tensor, one number or one histogram each.

For layout and field numbers see docs/spec of the format, and the public protobuf definitions of TensorFlow's events.
A record is built as parts, so that a tensor's bytes are never copied. The parser checks all bounds.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from luff.compat.smdebug.exceptions import SMDebugRuntimeError, SMDebugTypeError

__all__ = ["Record", "decode_event", "histogram_event", "read_record", "scalar_event", "tensor_event"]

# NumPy type names and their codes. Types that NumPy lacks are not written.
_CODES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9,
    "bool": 10, "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
_LITTLE = sys.byteorder == "little"
_DTYPES = {
    code: np.dtype(name) if _LITTLE else np.dtype(name).newbyteorder("<") for name, code in _CODES.items()
}
_STRING = (0, 7)
_BFLOAT16 = 14
# Fields of a TensorProto in which other writers store arrays as typed lists: field -> element type in the message.
_LISTS = {5: "<f4", 6: "<f8", 7: "varint", 10: "varint", 11: "varint"}
_MOST_DIMENSIONS = 254

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    out = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
        out.append(number)
    return out


_TABLE = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


# Tensor records end with this constant instead of a checksum of the payload.
_FOOTER = _masked_crc(b"0x12345678")


def _varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _framed(size: int) -> list[bytes]:
    head = struct.pack("<Q", size)
    return [head, _masked_crc(head)]


def _start(wall_time: float, step: int) -> bytes:
    out = b"\x09" + struct.pack("<d", wall_time) if wall_time else b""
    return out + (b"\x10" + _varint(step) if step else b"")


def _shape(name: bytes, shape: tuple[int, ...]) -> bytes:
    dims = b""
    for size in shape:
        number = b"\x08" + _varint(size) if size else b""
        dims += _field(2, number + _field(2, name + b"_" + str(size).encode()))
    return _field(2, dims)


def tensor_event(
    name: str, value: np.ndarray[Any, Any], wall_time: float, step: int, mode: int, mode_step: int
) -> list[Any]:
    """Returns the parts of the record of a tensor.

    Raises
    ------
    SMDebugTypeError
        If the format has no code for the type.
    """
    tag = name.encode("utf-8")
    if value.dtype.kind in "USO":
        if value.ndim > 1 or not all(isinstance(item, (str, np.str_)) for item in value.ravel().tolist()):
            raise SMDebugTypeError(
                f"tensor {name!r}: found an array of objects, expected text in one dimension"
            )
        head = _shape(tag, value.shape)
        content: Any = b"".join(_field(8, item.encode("utf-8")) for item in value.ravel().tolist())
        length_of_content = b""
    else:
        code = _CODES.get(value.dtype.name)
        if code is None:
            raise SMDebugTypeError(
                f"tensor {name!r}: found type {value.dtype}, expected one of {', '.join(_CODES)}; convert it first"
            )
        little = value.astype(_DTYPES[code], copy=False)
        flat = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
        content = flat.data if value.size else b""
        head = b"\x08" + _varint(code) + _shape(tag, value.shape)
        length_of_content = b"\x22" + _varint(len(content)) if len(content) else b""
    plugins = b"".join(
        _field(1, _field(1, key) + _field(2, str(number).encode()))
        for key, number in ((b"mode_step", mode_step), (b"mode", mode))
    )
    tail = _field(9, plugins)
    tensor_size = len(head) + len(length_of_content) + len(content)
    before = _field(1, tag) + b"\x42" + _varint(tensor_size) + head + length_of_content
    size_of_value = len(before) + len(content) + len(tail)
    outer = b"\x0a" + _varint(size_of_value)
    start = _start(wall_time, step)
    begin = start + b"\x2a" + _varint(len(outer) + size_of_value) + outer + before
    return [b"".join([*_framed(len(begin) + len(content) + len(tail)), begin]), content, tail + _FOOTER]


def _board_record(wall_time: float, step: int, value: bytes) -> bytes:
    payload = _start(wall_time, step) + _field(5, _field(1, value))
    return b"".join([*_framed(len(payload)), payload, _masked_crc(payload)])


def file_version_event(wall_time: float) -> bytes:
    """Returns the first record of a file for TensorBoard."""
    payload = _start(wall_time, 0) + _field(3, b"brain.Event:2")
    return b"".join([*_framed(len(payload)), payload, _masked_crc(payload)])


def scalar_event(name: str, value: float, wall_time: float, step: int) -> bytes:
    """Returns the record of a number, for TensorBoard."""
    return _board_record(
        wall_time, step, _field(1, name.encode("utf-8")) + b"\x15" + struct.pack("<f", value)
    )


def histogram_event(
    name: str, statistics: tuple[float, float, float, float, float], limits: Any, counts: Any,
    wall_time: float, step: int,
) -> bytes:  # fmt: skip
    """Returns a histogram's record, for TensorBoard. `statistics`: minimum, maximum, count, sum, sum of squares."""
    body = b"".join(bytes([number << 3 | 1]) + struct.pack("<d", x) for number, x in enumerate(statistics, 1))
    body += _field(6, np.asarray(limits, "<f8").tobytes()) + _field(7, np.asarray(counts, "<f8").tobytes())
    return _board_record(wall_time, step, _field(1, name.encode("utf-8")) + _field(5, body))


# ---- reading -------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """The contents of a record of an event file; `value` is None if it has none of a known kind."""

    wall_time: float = 0.0
    step: int = 0
    name: str = ""
    mode: int = 4
    mode_step: int | None = None
    value: Any = None


class _Damaged(Exception):
    """The bytes are not a valid message."""


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yields number, wire type and value of each field of a message."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            if at >= end or shift > 63:
                raise _Damaged("a number has no end")
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    while at < end:
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, kind, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise _Damaged(f"wire type {kind}")
            size = varint()
        if size > end - at:
            raise _Damaged(f"a field of {size} bytes, and {end - at} are left")
        yield key >> 3, kind, data[at : at + size]
        at += size


def _packed(data: memoryview) -> list[int]:
    out, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            number &= 0xFFFFFFFFFFFFFFFF
            out.append(number - (1 << 64) if number >> 63 else number)
            number = shift = 0
        elif shift > 63:
            raise _Damaged("a number has no end")
    return out


def _dimensions(data: memoryview) -> tuple[int, ...]:
    shape: list[int] = []
    for number, _, dim in _fields(data):
        if number == 2:
            shape.append(next((int(v) for n, k, v in _fields(dim) if n == 1 and k == 0), 0))
    if len(shape) > _MOST_DIMENSIONS or any(size >= 1 << 63 for size in shape):
        raise _Damaged(f"a shape of {len(shape)} dimensions, or a negative one")
    return tuple(shape)


def _tensor(data: memoryview) -> Any:
    code = 0
    shape: tuple[int, ...] = ()
    content: memoryview | None = None
    texts: list[str] = []
    listed: np.ndarray[Any, Any] | None = None
    for number, kind, value in _fields(data):
        if number == 1 and kind == 0:
            code = value
        elif number == 2 and kind == 2:
            shape = _dimensions(value)
        elif number == 4 and kind == 2:
            content = value
        elif number == 8 and kind == 2:
            texts.append(bytes(value).decode("utf-8", "backslashreplace"))
        elif number in _LISTS and kind == 2:
            how = _LISTS[number]
            listed = np.array(_packed(value)) if how == "varint" else np.frombuffer(value, how)
    if code in _STRING and content is None:
        return np.array(texts)
    if code == _BFLOAT16:
        dtype = np.dtype(np.uint16)
    elif code in _DTYPES:
        dtype = _DTYPES[code]
    else:
        raise _Damaged(f"type number {code}, which this version does not know")
    count = 1
    for size in shape:
        count *= size
    if content is None:
        if listed is not None:
            return listed.astype(_DTYPES.get(code, dtype)).reshape(shape if listed.size == count else -1)
        content = memoryview(b"")
    if count * dtype.itemsize != len(content):
        raise _Damaged(f"a shape {shape} of {dtype} and {len(content)} bytes")
    made = np.frombuffer(content, dtype).reshape(shape)
    if code == _BFLOAT16:
        import ml_dtypes

        return made.view(ml_dtypes.bfloat16)
    return made


def _value(data: memoryview, record: Record) -> None:
    for number, kind, value in _fields(data):
        if number == 1 and kind == 2:
            record.name = bytes(value).decode("utf-8", "backslashreplace")
        elif number == 2 and kind == 5:
            record.value = struct.unpack("<f", value)[0]
        elif number == 8 and kind == 2:
            record.value = _tensor(value)
        elif number == 9 and kind == 2:
            for n, k, plugin in _fields(value):
                if n != 1 or k != 2:
                    continue
                parts = {i: bytes(v) for i, w, v in _fields(plugin) if w == 2}
                text = parts.get(2, b"")
                if parts.get(1) == b"mode_step" and text.lstrip(b"-").isdigit():
                    record.mode_step = int(text)
                elif parts.get(1) == b"mode" and text in (b"1", b"2", b"3", b"4"):
                    record.mode = int(text)


def decode_event(payload: Any) -> Record:
    """Parses the payload of a record; raises `ValueError` if it is damaged."""
    record = Record()
    try:
        for number, kind, value in _fields(memoryview(payload)):
            if number == 1 and kind == 1:
                record.wall_time = struct.unpack("<d", value)[0]
            elif number == 2 and kind == 0:
                record.step = value
            elif number == 5 and kind == 2:
                for n, k, item in _fields(value):
                    if n == 1 and k == 2:
                        _value(item, record)
    except (_Damaged, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None
    return record


def read_record(file: Any, path: str, *, at_most: int | None = None) -> Record | None:
    """Reads the record at the current position of an open file; returns None at the end of the file.

    Raises
    ------
    SMDebugRuntimeError
        If it is damaged; the message names file and offset.
    """
    offset = file.tell()

    def damaged(what: str) -> SMDebugRuntimeError:
        return SMDebugRuntimeError(
            f"found {what}, expected a record of an event file; the other steps can still be read: "
            f"{path}, offset {offset}"
        )

    head = file.read(12)
    if not head:
        return None
    if len(head) < 12 or _masked_crc(head[:8]) != head[8:]:
        raise damaged("a damaged header" if len(head) == 12 else f"{len(head)} bytes")
    size = struct.unpack("<Q", head[:8])[0]
    here = file.tell()
    left = file.seek(0, 2) - here
    file.seek(here)
    if size + 4 > left:
        raise damaged(f"a record of {size} bytes where {left} are left")
    if at_most is not None and size + 16 > at_most:
        raise damaged(f"a record of {size + 16} bytes where the index says {at_most}")
    payload, footer = file.read(size), file.read(4)
    if len(payload) < size or len(footer) < 4:
        raise damaged("the file's end inside a record")
    if footer != _FOOTER and footer != _masked_crc(payload):
        raise damaged("a wrong checksum")
    try:
        return decode_event(payload)
    except ValueError as error:
        raise damaged(f"a damaged message ({error})") from None
