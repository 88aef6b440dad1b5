"""Converts tensors to arrays, and finds this process's rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.compat.smdebug.core.utils import horovod_rank_and_size
from luff.compat.smdebug.exceptions import SMDebugTypeError

__all__ = ["is_pt_1_5", "is_pt_1_6", "is_pt_1_7", "rank_and_size", "to_numpy"]


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Returns the values of a tensor, as a view if it is in the CPU's memory. bfloat16 and 8-bit floats become
    float32.

    Raises
    ------
    SMDebugTypeError
        If it has no dense values in a type that NumPy knows.
    """
    import torch

    try:
        found = tensor.detach()
        if hasattr(found, "to_local"):
            found = found.to_local()
        if found.layout is not torch.strided:
            found = found.to_dense()
        if found.dtype is torch.bfloat16 or (found.dtype.itemsize == 1 and found.is_floating_point()):
            found = found.float()
        return np.asarray(found.cpu().resolve_conj().resolve_neg().numpy())
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        raise SMDebugTypeError(f"found a tensor without values that NumPy knows ({error})") from None


def rank_and_size() -> tuple[int, int]:
    """Returns the rank of this process and the number of processes."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return horovod_rank_and_size("torch")


def _is_version(start: str) -> bool:
    import torch

    return torch.__version__.startswith(start)


def is_pt_1_5() -> bool:
    """Returns whether this is PyTorch 1.5."""
    return _is_version("1.5.")


def is_pt_1_6() -> bool:
    """Returns whether this is PyTorch 1.6."""
    return _is_version("1.6.")


def is_pt_1_7() -> bool:
    """Returns whether this is PyTorch 1.7."""
    return _is_version("1.7.")
