"""Sparse gradients that are not coalesced: the rows that an index names more than once are added up, in a copy.

The training's own tensor stays as it is, and no operation of torch is called. Bounded: larger gradients are a gap.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

__all__ = ["coalesced"]

_MAX_VALUES = 1 << 18
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _view(tensor: Any, kind: Any) -> Any:
    """The tensor's memory as an array, strides included; None where it is empty."""
    size = np.dtype(kind).itemsize
    strides = [step * size for step in tensor.stride()]
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + size
    memory = (ctypes.c_uint8 * extent).from_address(tensor.data_ptr())
    return np.ndarray(tuple(tensor.shape), kind, memory, 0, strides)


def coalesced(tensor: Any) -> Any:
    """Values of the gradient as the optimizer will see them: one row for each index, in the order of the indices.

    Returns
    -------
    numpy.ndarray or None
        None where it is too large, or its values are no float32 or float64.
    """
    indices, values = tensor._indices(), tensor._values()
    kind = _NUMPY.get(values.dtype)
    if kind is None or values.numel() > _MAX_VALUES or indices.numel() > _MAX_VALUES:
        return None
    if not values.numel():
        return np.zeros(tuple(values.shape), kind)
    where = np.ravel_multi_index(tuple(_view(indices, np.int64)), tuple(tensor.shape[: indices.shape[0]]))
    order = np.argsort(where, kind="stable")
    where = where[order]
    first = np.flatnonzero(np.concatenate(([True], where[1:] != where[:-1])))
    return np.ascontiguousarray(np.add.reduceat(_view(values, kind)[order], first, axis=0))
