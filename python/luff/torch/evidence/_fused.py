"""The weights of fused attention, worked out from what the kernel has saved for its backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from luff.torch.capture._memory import Array, array_of

__all__ = ["Fused"]


class Fused:
    """Query and key of one call of `scaled_dot_product_attention`, in memory that torch owns.

    Attributes
    ----------
    shape
        Samples, heads, queries, keys.
    products
        Multiplications for the weights of one sample.
    """

    def __init__(self, node: Any, query: Array, key: Array, added: Array | None) -> None:
        self.shape = (*query.shape[:3], key.shape[2])
        self.products = math.prod(self.shape[1:]) * query.shape[3]
        self._query, self._key, self._added = query, key, added
        self._group = query.shape[1] // key.shape[1]  # query heads that share a key head
        self._causal = bool(node._saved_is_causal)
        scale = node._saved_scale
        self._factor = float(scale) if isinstance(scale, int | float) else 1.0 / math.sqrt(query.shape[3])

    @classmethod
    def of(cls, node: Any) -> Fused | None:
        """Returns what a node has saved; None if it cannot be read."""
        query, key, mask = array_of(node._saved_query), array_of(node._saved_key), node._saved_attn_mask
        if query is None or key is None or query.ndim != 4 or key.ndim != 4 or not query.size or not key.size:
            return None
        if query.shape[1] % key.shape[1]:
            return None
        added = None
        if mask is not None:
            added = array_of(mask)
            if added is None:
                return None
            added = np.broadcast_to(added, (*query.shape[:3], key.shape[2]))
        return cls(node, query, key, added)

    def weights(self, sample: int, head: int, places: Sequence[int]) -> Array:
        """Returns a row of weights for each of some queries; zeros where a query may look at nothing."""
        query: Array = self._query[sample, head][places]
        scores = _product(query, self._key[sample, head // self._group]) * self._factor
        if self._added is not None:
            scores = scores + self._added[sample, head][places]
        if self._causal:
            for row, place in enumerate(places):
                scores[row, place + 1 :] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
            total = weights.sum(axis=1, keepdims=True)
            found: Array = weights / np.where(total == 0.0, 1.0, total)
        return found


def _product(left: Array, right: Array) -> Array:
    """Computes left times transposed right, without a library that would start threads."""
    product: Array = np.einsum("ij,kj->ik", left.astype(np.float64), right.astype(np.float64), optimize=False)
    return product
