"""The graph of a model of layers, from its outputs back to its inputs."""

from __future__ import annotations

from typing import Any

__all__ = ["layer_of", "nodes_of"]

_MOST = 4096  # nodes of a graph that is looked at


def layer_of(tensor: Any) -> tuple[Any, Any]:
    """Returns the layer that made a tensor, and its one input; None for what is not known, or several."""
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None, None
    inputs = history.operation._inbound_nodes[history.node_index].input_tensors
    return history.operation, inputs[0] if len(inputs) == 1 else None


def nodes_of(model: Any) -> list[Any]:
    """Returns the calls of layers that a model's outputs depend on; none for a model with a `call` of its own, or of
    too many.
    """
    found: dict[int, Any] = {}
    waiting = list(getattr(model, "outputs", None) or [])
    while waiting:
        history = getattr(waiting.pop(), "_keras_history", None)
        if history is None or history.operation is None:
            continue
        node = history.operation._inbound_nodes[history.node_index]
        if id(node) in found:
            continue
        if len(found) >= _MOST:
            return []
        found[id(node)] = node
        waiting.extend(node.input_tensors)
    return list(found.values())
