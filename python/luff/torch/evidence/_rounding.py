"""Finds what rounding leaves of an update: compares a few weights before it and before the next, bit by bit.

Examined in the first updates of an optimizer and then ever more rarely; uses no torch operation. Weights on an
accelerator are compared when they have come, some updates later.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from luff._hook import Session
from luff.torch.capture._device import LateBytes, is_on_device
from luff.torch.capture._memory import address_of, array_view, is_readable, read_scalar
from luff.torch.capture._names import Names
from luff.torch.evidence._decays import moved_alike
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._step import StepContext

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
        self._late: list[_LateLook] = []
        self.pending = False  # of either: a look at the next update

    def update_begins(self, number: int, update: int, optimizer: Any, context: StepContext) -> None:
        """Called when an optimizer is about to make an update (the first is 0), at each power of two and while
        `pending`. Compares the result of the previous one.
        """
        if self.pending:
            self._compare(number, context.names)
            self._take(number, context.names)
            self.pending = bool(self._before or self._late)
        if update < 1 or update & (update - 1) or len(self._before) + len(self._late) >= _PENDING:
            return
        if getattr(optimizer, "found_inf", None) is not None:
            return  # a fused one, which may skip the update on its device: weights that stay were not rounded
        found = []
        for parameter in _few(optimizer):
            gradient = parameter.grad
            if gradient is None or gradient.dtype is not parameter.dtype or gradient.shape != parameter.shape:
                continue
            weights, slopes = _bits_of(parameter), _bits_of(gradient)
            if weights is not None and slopes is not None and gradient.stride() == parameter.stride():
                found.append((weakref.ref(parameter), weights.copy(), _moving(slopes, parameter.dtype)))
        if found:
            self._before[number] = (_rate(optimizer), found)
        session = context.session
        elsewhere = []
        if session is not None and session.reads_accelerators:
            elsewhere = [
                pair for pair in map(_pair_on_device, _few(optimizer, is_on_device)) if pair is not None
            ]
        if session is not None and elsewhere:
            device = elsewhere[0][0].get_device()
            pairs = [pair for pair in elsewhere if pair[0].get_device() == device]
            self._late.append(_LateLook(session, number, _rate(optimizer), pairs))
        self.pending = bool(self._before or self._late)

    def _take(self, number: int, names: Names) -> None:
        """Reads the result of an optimizer's last update on an accelerator, and compares what has come."""
        kept = []
        for look in self._late:
            if look.number == number and look.after is None and not look.read_result():
                continue
            record = look.take(names)
            if record is None:
                kept.append(look)
            elif record and len(self.waiting) < _PENDING:
                self.waiting.append(record)
        self._late = kept

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


class _LateLook:
    """Weights of an optimizer on one accelerator before and after an update, with their gradients."""

    def __init__(self, session: Session, number: int, rate: float, pairs: list[tuple[Any, Any]]) -> None:
        self.number = number
        self._session = session
        self._rate = rate
        self._parts = [(weakref.ref(p), p.dtype, address_of(p), min(p.numel(), _ELEMENTS)) for p, _ in pairs]
        self.before: Any = LateBytes(session, [t for pair in pairs for t in pair], _ELEMENTS)
        self.after: Any = None

    def read_result(self) -> bool:
        """Reads the weights again. False if some are gone, or lie elsewhere now."""
        parameters = [reference() for reference, _, _, _ in self._parts]
        for parameter, (_, dtype, address, _) in zip(parameters, self._parts, strict=True):
            if parameter is None or parameter.dtype is not dtype or not is_on_device(parameter):
                return False
            if address_of(parameter) != address:
                return False
        self.after = LateBytes(self._session, parameters, _ELEMENTS)
        return True

    def take(self, names: Names) -> dict[str, Any] | None:
        """Returns the record; None while something is on its way, nothing where it was lost."""
        if isinstance(self.before, LateBytes):
            before = self.before.take()
            if before is None:
                return None
            self.before = before
        after = None if self.after is None else self.after.take()
        if after is None:
            return None if self.before else {}
        if not self.before or not after:
            return {}
        parameters, at, behind = [], 0, 0
        for reference, dtype, _, count in self._parts:
            parameter, kind = reference(), np.dtype(_BITS[dtype])
            old, slopes = np.frombuffer(self.before, kind, 2 * count, at).reshape(2, count)
            new = np.frombuffer(after, kind, count, behind)
            at, behind = at + 2 * count * kind.itemsize, behind + count * kind.itemsize
            if parameter is not None:
                moving = _moving(slopes, dtype)
                parameters.append(_compared(names.parameter(parameter) or "", parameter, old, new, moving))
        return {"kind": "rounding", "optimizer": self.number, "lr": self._rate, "parameters": parameters}


def _rate(optimizer: Any) -> float:
    """Returns the largest learning rate of those that can be read without asking an accelerator; else -1."""
    largest = -1.0
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, torch.Tensor):
            rate = read_scalar(rate)  # None on an accelerator: to wait for it would break a capture
        if isinstance(rate, int | float):
            largest = max(largest, float(rate))
    return largest


def _moving(slopes: Bits, dtype: Any) -> NDArray[Any]:
    """Returns a mask of the gradients that move a weight. Zero has no bit set, except perhaps the sign."""
    moving: NDArray[Any] = (np.left_shift(slopes, 1) != 0) & _are_finite(slopes, dtype)
    return moving


def _pair_on_device(parameter: Any) -> tuple[Any, Any] | None:
    """Returns a parameter and its gradient if both can be read on their accelerator."""
    gradient = parameter.grad
    if gradient is None or not is_on_device(gradient) or gradient.get_device() != parameter.get_device():
        return None
    alike = gradient.dtype is parameter.dtype and gradient.shape == parameter.shape
    if not alike or not parameter.is_contiguous() or not gradient.is_contiguous():
        return None
    return (parameter, gradient) if address_of(parameter) and address_of(gradient) else None


def _few(optimizer: Any, readable: Any = is_readable) -> list[Any]:
    """Returns matrices among an optimizer's parameters, spread evenly; looks at a bounded number."""
    held = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"][:4096]
        if parameter.dtype in _BITS and parameter.dim() >= 2 and readable(parameter)
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
        rested = ~moving & _are_finite(before, parameter.dtype) & _are_finite(after, parameter.dtype)
        record |= moved_alike(_numbers(before[rested]), _numbers(after[rested]))
    return record


def _are_finite(bits: Bits, dtype: Any) -> NDArray[Any]:
    """Returns a mask of the finite values, by their exponents."""
    mask = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}[dtype]
    finite: NDArray[Any] = (bits & mask) != mask
    return finite


def _numbers(bits: Bits) -> NDArray[Any]:
    return np.ascontiguousarray(bits).view(np.float32)


def _are_half(bits: Bits) -> bool:
    """Whether all numbers can be represented in float16."""
    values = _numbers(bits)
    with np.errstate(all="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())
