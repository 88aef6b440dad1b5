"""Finds attention that is masked the wrong way round: of padded rows it looks at the padding, and at nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of

__all__ = ["turned_masks"]

_MOST = 1 << 20  # weights of a map that are read
_NOTHING = 1e-6  # of a query's weight


def turned_masks(nodes: Iterable[Any], lengths: list[int], width: int) -> int:
    """Returns how many softmaxes over the places of padded rows give real places no weight; 0 if one of them does.

    Parameters
    ----------
    nodes
        Of a graph whose saved tensors may be read.
    lengths, width
        Places of each row before its padding, and of the batch.
    """
    found = 0
    for node in nodes:
        if operation_of(node) not in ("Softmax", "SafeSoftmax"):
            continue
        try:
            weights = _by_row(node._saved_result, len(lengths), width)
        except (RuntimeError, AttributeError):  # changed in place since, or saved under another name
            continue
        if weights is None:
            continue
        padded = [row for row, length in enumerate(lengths) if length < width]
        if not all((weights[row, :, : lengths[row]].sum(axis=-1) <= _NOTHING).all() for row in padded):
            return 0
        found += bool(padded)
    return found


def _by_row(result: Any, rows: int, width: int) -> Array | None:
    """Returns weights as (rows, queries of all heads, keys); None if the last axis is not that of the places."""
    shape = tuple(result.shape)
    if len(shape) not in (3, 4) or shape[-1] != width or shape[0] % rows or result.numel() > _MOST:
        return None
    weights = array_of(result)
    return None if weights is None else weights.reshape(rows, -1, width)
