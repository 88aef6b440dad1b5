"""Identifies a batch by a content hash of the first dense tensor of a model's call."""

from __future__ import annotations

from typing import Any

import torch

from luff._hook import Session
from luff.torch.capture._device import Unchanged, hash_on_device, is_on_device
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.capture._modules import tensors_in

__all__ = ["LaterBatch", "batch_hash"]

_PART_BYTES = 4096
_PARTS = 8
_MASK = 0xFFFFFFFFFFFFFFFF


def batch_hash(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Returns a hash of shape and content, of eight pages if the tensor is large; None
    if there is no dense tensor. Of one on an accelerator: what the session takes for its hash in an event of this step.
    """
    for tensor in args[:1] if args and type(args[0]) is torch.Tensor else tensors_in((args, kwargs)):
        if not is_readable(tensor):
            return _on_device(session, tensor)
        if not tensor.is_contiguous():
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


def _on_device(session: Session, tensor: Any) -> int | None:
    """The same hash of the same bytes; None if it cannot be read now."""
    if (
        not session.reads_accelerators
        or not is_on_device(tensor)
        or not tensor.is_contiguous()
        or not address_of(tensor)
    ):
        return None
    size, seed = tensor.nbytes, hash(tuple(tensor.shape)) & _MASK
    if size <= _PART_BYTES * _PARTS:
        return hash_on_device(session, tensor, seed, size, 1, 0) or None
    stride = (size - _PART_BYTES) // (_PARTS - 1)
    return hash_on_device(session, tensor, seed, _PART_BYTES, _PARTS, stride) or None


class LaterBatch:
    """A batch seen before the session was open: hashed later, if it still exists unchanged."""

    __slots__ = ("_tensor",)

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor: Any = next(tensors_in((args, kwargs)), None)
        usable = tensor is not None and (is_readable(tensor) or is_on_device(tensor))
        self._tensor = Unchanged(tensor) if usable else None

    def __call__(self, session: Session) -> int | None:
        tensor = None if self._tensor is None else self._tensor()
        return None if tensor is None else batch_hash(session, (tensor,), {})
