"""Whether a script that has neither modules nor optimizers trains: it changes what its backward passes reach."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from typing import Any

from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import address_of, bytes_spanned, is_readable

__all__ = ["UpdatesByHand"]

_LEAVES = 8  # that are remembered
_NODES = 256  # behind a root that are looked at
_BYTES = 64  # of a leaf
_LOOKS = 256  # without an update, after which nothing is looked at any more


class UpdatesByHand:
    """Looks whether the leaves of a graph have other values after its backward pass.

    Attributes
    ----------
    seen
        Whether one had.
    """

    def __init__(self) -> None:
        self.seen = False
        self._looks = 0
        self._leaves: list[tuple[weakref.ref[Any], tuple[int, bytes]]] = []

    def remember(self, roots: list[Any]) -> None:
        """Called with the roots of a backward pass."""
        if not self.seen and self._looks < _LOOKS:
            self._looks += 1
            self._leaves = [(weakref.ref(leaf), _state(leaf)) for leaf in _leaves(roots)]

    def look(self) -> bool:
        """Returns whether what a backward pass has reached was changed since, or ever."""
        if not self.seen and self._leaves:
            leaves = [(reference(), state) for reference, state in self._leaves]
            self.seen = any(leaf is not None and _state(leaf) != state for leaf, state in leaves)
            if self.seen:
                self._leaves = []
        return self.seen


def _leaves(roots: list[Any]) -> Iterator[Any]:
    """Yields tensors that a backward pass would give a gradient."""
    count = 0
    for node in nodes_behind(nodes_of(roots), _NODES):
        leaf = getattr(node, "variable", None)
        if leaf is not None and count < _LEAVES:
            count += 1
            yield leaf


def _state(leaf: Any) -> tuple[int, bytes]:
    """Returns how often a tensor was changed in place, and its first bytes if they can be read: `data` is changed
    without a count.
    """
    address = address_of(leaf) if is_readable(leaf) else 0
    return leaf._version, ctypes.string_at(address, min(bytes_spanned(leaf), _BYTES)) if address else b""
