"""Walks nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["nodes_behind", "nodes_of", "operation_of"]


def operation_of(node: Any) -> str:
    """Returns the name of a node's operation, e.g. ``LogSoftmax`` of a ``LogSoftmaxBackward0``; "" for None."""
    return "" if node is None else str(node.name()).rstrip("0123456789").removesuffix("Backward")


def nodes_of(roots: Iterable[Any]) -> list[Any]:
    """Returns the nodes that made the given tensors."""
    return [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]


def nodes_behind(starts: Iterable[Any], limit: int) -> Iterator[Any]:
    """Yields the given nodes and the nodes reachable from them, breadth first, at most `limit`."""
    nodes = list(starts)
    seen = set(nodes)
    for node in nodes:  # grows during the loop
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(nodes) < limit:
                seen.add(following)
                nodes.append(following)
