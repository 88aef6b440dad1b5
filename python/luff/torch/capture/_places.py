"""Knows which module's call made a node of the graph: nodes are numbered in the order in which they are made."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Places"]

_MAX_CALLS = 4096
# The number of the next node of this thread's graph; None: this torch does not tell.
_next_node: Callable[[], int] | None = getattr(torch.autograd, "_get_sequence_nr", None)


class Places:
    """The calls of one step, bounded. Holds modules only weakly."""

    def __init__(self) -> None:
        self._began: dict[int, int] = {}  # id of a module that runs -> the next node when its call began
        self._calls: list[tuple[int, int, Any]] = []

    def before(self, module: Any) -> None:
        """Called when a module is about to run."""
        if _next_node is not None and len(self._calls) < _MAX_CALLS:
            self._began[id(module)] = _next_node()

    def after(self, module: Any) -> None:
        """Called when a module has returned."""
        began = self._began.pop(id(module), None)
        if _next_node is not None and began is not None:
            self._calls.append((began, _next_node(), weakref.ref(module)))

    def at(self, node: int) -> Any:
        """Returns the innermost module whose call made the node with this number; None if none is known."""
        within = [(last - first, module) for first, last, module in self._calls if first <= node < last]
        return min(within, key=lambda one: one[0])[1]() if within else None
