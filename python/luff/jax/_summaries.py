"""Computes summaries where the values are: inside compiled functions, and on accelerators.

A summary is eight numbers, so two small arrays hold those of a whole tree. Sums are computed in float32 (float64 if
JAX has 64-bit types enabled); limits and counts are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

__all__ = ["Summaries", "rows_of", "summaries_of", "summarize"]


@jax.tree_util.register_pytree_node_class
class Summaries:
    """Summaries of the leaves of one tree, as a compiled function returns them.

    Attributes
    ----------
    numbers
        A row for each leaf: sum, sum of squares, sum of absolute values, minimum, maximum.
    counts
        A row for each leaf: zeros, NaN, infinities.
    """

    def __init__(self, numbers: Any, counts: Any, structure: Any, kinds: tuple[tuple[Any, str], ...]) -> None:
        self.numbers = numbers
        self.counts = counts
        self.structure = structure
        self.kinds = kinds  # shape and dtype of each leaf

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Implements JAX's pytree protocol."""
        return (self.numbers, self.counts), (self.structure, self.kinds)

    @classmethod
    def tree_unflatten(cls, fixed: tuple[Any, Any], parts: tuple[Any, Any]) -> Summaries:
        """Implements JAX's pytree protocol."""
        return cls(*parts, *fixed)

    def tree(self) -> Any:
        """Returns a tree of the same structure, whose leaves are their own indices."""
        return jax.tree_util.tree_unflatten(self.structure, range(len(self.kinds)))


def summarize(tree: Any) -> Summaries:
    """Returns the summaries of a tree of arrays, for a compiled function to return instead of the tree.

    ``hook.step(grads=...)`` and a function wrapped by `Hook.watch` take them as gradients, parameters or states of
    optimizers. Only summaries of such a tree are recorded; if raw values are due as well, that is a gap.

    Parameters
    ----------
    tree
        A pytree of arrays, e.g. gradients inside of ``jax.jit``.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    numbers, counts = summaries_of(leaves)
    kinds = tuple((tuple(np.shape(leaf)), str(jnp.result_type(leaf))) for leaf in leaves)
    return Summaries(numbers, counts, structure, kinds)


def summaries_of(leaves: Sequence[Any]) -> tuple[Any, Any]:
    """Returns two arrays with one row for each of the given arrays."""
    if not leaves:
        return jnp.zeros((0, 5), jnp.float32), jnp.zeros((0, 3), jnp.int32)
    rows = [_of(jnp.asarray(leaf)) for leaf in leaves]
    return jnp.stack([numbers for numbers, _ in rows]), jnp.stack([counts for _, counts in rows])


def _of(value: Any) -> tuple[Any, Any]:
    wide = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    if jnp.iscomplexobj(value):
        value = jnp.abs(value)
    value = value.astype(wide)
    nan, infinite = jnp.isnan(value), jnp.isinf(value)
    finite = ~(nan | infinite)
    zero = jnp.zeros((), wide)
    kept = jnp.where(finite, value, zero)
    low = jnp.min(value, where=finite, initial=jnp.inf) if value.size else jnp.asarray(jnp.inf, wide)
    high = jnp.max(value, where=finite, initial=-jnp.inf) if value.size else jnp.asarray(-jnp.inf, wide)
    numbers = jnp.stack([jnp.sum(kept), jnp.sum(kept * kept), jnp.sum(jnp.abs(kept)), low, high])
    counts = jnp.stack([jnp.sum(value == 0), jnp.sum(nan), jnp.sum(infinite)])
    return numbers, counts.astype(jnp.int32)


def rows_of(numbers: Any, counts: Any) -> NDArray[np.float64]:
    """Converts the arrays to the rows that `Session.capture_summaries` takes."""
    left, right = np.asarray(numbers), np.asarray(counts)
    return np.ascontiguousarray(np.concatenate([left, right], axis=1), dtype=np.float64)
