"""Reads the binary JSON in which XGBoost writes a model; arrays become NumPy arrays in one step each.

Only the subset that XGBoost writes is supported; anything else raises `ValueError`, which the hook counts.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

__all__ = ["parse"]

_NUMBERS = {
    b"i": (">b", 1, ">i1"),
    b"U": (">B", 1, ">u1"),
    b"I": (">h", 2, ">i2"),
    b"l": (">i", 4, ">i4"),
    b"L": (">q", 8, ">i8"),
    b"d": (">f", 4, ">f4"),
    b"D": (">d", 8, ">f8"),
}
_KINDS = {
    kind[0]: (struct.Struct(code), size, np.dtype(dtype)) for kind, (code, size, dtype) in _NUMBERS.items()
}
_LONG = struct.Struct(">q")
_MAX_DEPTH = 32


class _Reader:
    """A position in the bytes."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.at = 0

    def byte(self) -> int:
        value: int = self.data[self.at]
        self.at += 1
        return value

    def number(self, kind: int) -> Any:
        code, size, _ = _KINDS[kind]
        (value,) = code.unpack_from(self.data, self.at)
        self.at += size
        return value

    def length(self) -> int:
        if self.data[self.at] == 0x4C:  # L, which XGBoost always writes
            (value,) = _LONG.unpack_from(self.data, self.at + 1)
            self.at += 9
        else:
            value = self.number(self.byte())
        if not isinstance(value, int) or value < 0 or value > len(self.data):
            raise ValueError(f"a length of {value} at byte {self.at} of a model of {len(self.data)}")
        return value

    def text(self) -> str:
        size = self.length()
        begin = self.at
        self.at = end = begin + size
        return str(self.data[begin:end], "utf-8", "replace")

    def array(self, depth: int) -> Any:
        data = self.data
        if data[self.at] == 0x24:  # $: all elements have one type
            kind = data[self.at + 1]
            self.at += 2
            if self.byte() != 0x23:
                raise ValueError(f"an array without length at byte {self.at}")
            count = self.length()
            _, size, dtype = _KINDS[kind]
            found = np.frombuffer(data, dtype=dtype, count=count, offset=self.at)
            self.at += count * size
            return found
        if data[self.at] == 0x23:  # #: a length, and a type for each element
            self.at += 1
            return [self.value(self.byte(), depth) for _ in range(self.length())]
        items = []
        while (kind := self.byte()) != 0x5D:
            items.append(self.value(kind, depth))
        return items

    def value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("a model that is nested too deep")
        if kind == 0x7B:  # {
            found: dict[str, Any] = {}
            while self.data[self.at] != 0x7D:
                key = self.text()
                found[key] = self.value(self.byte(), depth + 1)
            self.at += 1
            return found
        if kind == 0x5B:  # [
            return self.array(depth + 1)
        if kind == 0x53:  # S
            return self.text()
        if kind in _KINDS:
            return self.number(kind)
        if kind in (0x54, 0x46):
            return kind == 0x54
        if kind == 0x5A:
            return None
        raise ValueError(f"a value of kind {kind:#x} at byte {self.at}")


def parse(data: bytes | bytearray | memoryview) -> Any:
    """Parses `data` and returns its value.

    Raises
    ------
    ValueError
        If XGBoost would not have written such bytes.
    """
    reader = _Reader(data)
    try:
        return reader.value(reader.byte(), 0)
    except (IndexError, KeyError, struct.error) as error:
        raise ValueError(f"a model that ends or breaks at byte {reader.at}: {error}") from None
