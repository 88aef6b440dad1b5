"""Finds what rounding leaves of an update: compares a few weights before it and before the next, bit by bit.

Examined in the first updates of an optimizer and then ever more rarely; uses no torch operation.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from luff.torch.capture._memory import address_of, array_view, is_readable
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Rounding"]

_PARAMETERS = 8  # examined per optimizer
_ELEMENTS = 512  # examined per parameter
_PENDING = 8  # events in one step
_BITS = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.float32: np.uint32}
Bits = NDArray[Any]


class Rounding(WaitingEvents):
    """Compares weights around updates, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        # Number of the optimizer -> learning rate, and (weak parameter, weights before the update, mask of those it
        # moves).
        self._before: dict[int, tuple[float, list[tuple[Any, Bits, Bits]]]] = {}

    def update_begins(self, number: int, update: int, optimizer: Any, names: Names) -> None:
        """Called when an optimizer is about to make an update (the first is 0). Compares the result of the previous
        one.
        """
        if self._before:
            self._compare(number, names)
        if update < 1 or update & (update - 1) or len(self._before) >= _PENDING:
            return
        found = []
        for parameter in _few(optimizer):
            gradient = parameter.grad
            if gradient is None or gradient.dtype is not parameter.dtype or gradient.shape != parameter.shape:
                continue
            weights, slopes = _bits_of(parameter), _bits_of(gradient)
            if weights is not None and slopes is not None and gradient.stride() == parameter.stride():
                # Zero has no bit set, except perhaps the sign.
                moving = np.left_shift(slopes, 1) != 0
                found.append((weakref.ref(parameter), weights.copy(), moving))
        if found:
            rate = max((float(g["lr"]) for g in optimizer.param_groups if "lr" in g), default=-1.0)
            self._before[number] = (rate, found)

    def _compare(self, number: int, names: Names) -> None:
        rate, found = self._before.pop(number, (0.0, []))
        if not found or len(self.waiting) >= _PENDING:
            return
        parameters = []
        for reference, before, moving in found:
            parameter = reference()
            after = None if parameter is None else _bits_of(parameter)
            if after is not None and after.shape == before.shape:
                parameters.append(
                    _compared(names.parameter(parameter) or "", parameter, before, after, moving)
                )
        self.waiting.append({"kind": "rounding", "optimizer": number, "lr": rate, "parameters": parameters})


def _few(optimizer: Any) -> list[Any]:
    """Returns matrices among an optimizer's parameters, spread evenly; looks at a bounded number."""
    held = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"][:4096]
        if parameter.dtype in _BITS and parameter.dim() >= 2 and is_readable(parameter)
    ]
    return held[:: max(len(held) // _PARAMETERS, 1)][:_PARAMETERS]


def _bits_of(tensor: Any) -> Bits | None:
    """Returns a view of evenly spread elements as unsigned numbers."""
    if not is_readable(tensor) or not address_of(tensor) or not tensor.is_contiguous():
        return None
    bits = array_view(tensor, _BITS[tensor.dtype]).reshape(-1)
    step = max(tensor.numel() // _ELEMENTS, 1)
    return bits[:: step | 1][:_ELEMENTS]  # an odd step, so that it is not always the same column


def _compared(name: str, parameter: Any, before: Bits, after: Bits, moving: NDArray[Any]) -> dict[str, Any]:
    moving = moving & _are_finite(before, parameter.dtype) & _are_finite(after, parameter.dtype)
    record = {
        "name": name,
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "looked": int(before.size),
        "moving": int(np.count_nonzero(moving)),
        "changed": int(np.count_nonzero(moving & (before != after))),
    }
    if parameter.dtype is torch.float32:  # the script may have rounded it
        record["bfloat16"] = not ((before | after) & 0xFFFF).any()
        record["float16"] = _are_half(after) and _are_half(before)
    return record


def _are_finite(bits: Bits, dtype: Any) -> NDArray[Any]:
    """Returns a mask of the finite values, by their exponents."""
    mask = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}[dtype]
    finite: NDArray[Any] = (bits & mask) != mask
    return finite


def _are_half(bits: Bits) -> bool:
    """Whether all numbers can be represented in float16."""
    values = np.ascontiguousarray(bits).view(np.float32)
    with np.errstate(all="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())
