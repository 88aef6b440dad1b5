"""Identifies a batch by a content hash of the first dense tensor of a model's call."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from luff._hook import Session
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.capture._modules import tensors_in

__all__ = ["LaterBatch", "batch_hash"]

_PART_BYTES = 4096
_PARTS = 8
_MASK = 0xFFFFFFFFFFFFFFFF


def batch_hash(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Returns a hash of shape and content, of eight pages if the tensor is large; None
    if there is no dense tensor.
    """
    for tensor in args[:1] if args and type(args[0]) is torch.Tensor else tensors_in((args, kwargs)):
        if not is_readable(tensor) or not tensor.is_contiguous():
            return None
        address, size = address_of(tensor), tensor.nbytes
        if not address or not size:
            return None
        value = hash(tuple(tensor.shape)) & _MASK
        if size <= _PART_BYTES * _PARTS:
            return value ^ session.hash(address, size)
        stride = (size - _PART_BYTES) // (_PARTS - 1)
        for part in range(_PARTS):
            value = (value * 31 + session.hash(address + part * stride, _PART_BYTES)) & _MASK
        return value
    return None


class LaterBatch:
    """A batch seen before the session was open: hashed later, if it still exists unchanged."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor: Any = next(tensors_in((args, kwargs)), None)
        usable = tensor is not None and is_readable(tensor) and not tensor.is_inference()
        self._tensor: Any = weakref.ref(tensor) if usable else None
        self._version = tensor._version if usable else 0

    def __call__(self, session: Session) -> int | None:
        tensor = None if self._tensor is None else self._tensor()
        if tensor is None or tensor._version != self._version:
            return None
        return batch_hash(session, (tensor,), {})
