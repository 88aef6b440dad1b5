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

    Called at few steps: the first 16, and those that are powers of two. A training that keeps ``loss`` instead of
    ``loss.item()``, or adds up losses with their graphs, keeps all of them.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, list[weakref.ref[_Mark]]]] = deque(maxlen=_MARKED)

    def root(self, session: Session, root: Any, step: int) -> None:
        """Looks for graphs of earlier steps, and marks this one."""
        if step >= _FIRST_LOOK:
            self._look(session, step)
        node = getattr(root, "grad_fn", None)
        if node is None:
            return
        # A loss that is scaled or divided before its backward pass is made by one of the nodes behind the root.
        behind = [following for following, _ in node.next_functions[:4] if following is not None]
        marks = [_marked(one) for one in (node, *behind) if one.name() != "torch::autograd::AccumulateGrad"]
        self._marks.append((step, [mark for mark in marks if mark is not None]))

    def _look(self, session: Session, step: int) -> None:
        earlier = [(made, marks) for made, marks in self._marks if made < step]
        alive = [made for made, marks in earlier if any(mark() is not None for mark in marks)]
        if len(alive) >= _TOLD:
            told = {"step": step, "looked_at": len(earlier), "alive": len(alive), "oldest": alive[0]}
            session.set_document("kept_graphs", json.dumps(told))


def _marked(node: Any) -> weakref.ref[_Mark] | None:
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, dict):
        return None
    mark = metadata[_KEY] = _Mark()
    return weakref.ref(mark)
