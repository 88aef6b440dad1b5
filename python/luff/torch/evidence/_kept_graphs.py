"""Graphs of earlier steps that are still in memory: the document ``kept_graphs``."""

from __future__ import annotations

import json
import weakref
from collections import deque
from typing import Any

from luff._hook import Session

__all__ = ["KeptGraphs"]

_MARKED = 64  # roots that are remembered, the latest
_FIRST_LOOK = 64  # TRAIN steps
_TOLD = 10  # graphs that are kept
_KEY = "luff"


class _Mark:
    """Lives as long as the node in whose metadata it lies."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    """Marks the nodes that made a loss, and looks later whether they are still there.

    A training that keeps ``loss`` instead of ``loss.item()``, or adds up losses with their graphs, keeps all of them.
    What was told is taken back once they are gone.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, list[weakref.ref[_Mark]]]] = deque(maxlen=_MARKED)
        self.told = 0  # graphs that the document says are there; 0: it says of none

    def root(self, session: Session, root: Any, step: int) -> None:
        """Looks for graphs of earlier steps, and marks this one. Called at few steps: the first 16, and those that are
        powers of two.
        """
        if step >= _FIRST_LOOK:
            self._tell(session, step, *self._looked(step))
        node = getattr(root, "grad_fn", None)
        if node is None:
            return
        # A loss that is scaled or divided before its backward pass is made by one of the nodes behind the root.
        behind = [following for following, _ in node.next_functions[:4] if following is not None]
        marks = [_marked(one) for one in (node, *behind) if one.name() != "torch::autograd::AccumulateGrad"]
        self._marks.append((step, [mark for mark in marks if mark is not None]))

    def step(self, session: Session, step: int) -> None:
        """Called at every step with a root once some were `told`: tells which of the graphs that were told are gone."""
        looked_at, alive = self._looked(step)
        if len(alive) < self.told:
            self._tell(session, step, looked_at, alive)

    def _looked(self, step: int) -> tuple[int, list[int]]:
        """Returns of how many earlier steps the graph was marked, and those of which it is still there."""
        earlier = [(made, marks) for made, marks in self._marks if made < step]
        return len(earlier), [made for made, marks in earlier if any(mark() is not None for mark in marks)]

    def _tell(self, session: Session, step: int, looked_at: int, alive: list[int]) -> None:
        if not self.told and len(alive) < _TOLD:
            return
        self.told = len(alive) if len(alive) >= _TOLD else 0
        told = {
            "step": step,
            "looked_at": looked_at,
            "alive": len(alive),
            "oldest": min(alive, default=-1),
            "newest": max(alive, default=-1),
        }
        session.set_document("kept_graphs", json.dumps(told))


def _marked(node: Any) -> weakref.ref[_Mark] | None:
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, dict):
        return None
    mark = metadata[_KEY] = _Mark()
    return weakref.ref(mark)
