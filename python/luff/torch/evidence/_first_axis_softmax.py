"""Tells of a softmax along the first axis of a tensor with several: where samples lie first, it mixes them."""

from __future__ import annotations

from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._events import WaitingEvents

__all__ = ["FirstAxisSoftmax"]


class FirstAxisSoftmax(WaitingEvents):
    """Tells of the first one that a graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def look(self, nodes: list[Any]) -> None:
        """Called with all nodes behind the roots of a backward pass."""
        if self._told:
            return
        for node in nodes:
            if operation_of(node) in ("Softmax", "SafeSoftmax") and (shape := _first_axis(node)) is not None:
                self._told = True
                self.waiting.append({"kind": "softmax_first_axis", "shape": shape})
                return


def _first_axis(node: Any) -> list[int] | None:
    """Returns the shape of a softmax that runs along the first of several axes; None if it does not."""
    try:
        shape = [int(size) for size in node._saved_result.shape]
        axis = int(node._saved_dim)
    except (RuntimeError, AttributeError):  # changed in place since, or freed
        return None
    axis -= 1 << 64 if axis >> 63 and axis > 0 else 0
    along_first = len(shape) > 1 and axis in (0, -len(shape)) and shape[0] > 1
    return shape if along_first and any(size > 1 for size in shape[1:]) else None
