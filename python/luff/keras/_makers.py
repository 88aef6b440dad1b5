"""Which layer made what a loss of a compiled model gets, as the model's own graph shows it: events `loss_input`."""

from __future__ import annotations

from typing import Any

from luff.keras._kinds import loss_kind, losses_of, output_kind

__all__ = ["loss_inputs"]

_PASSED_OVER = ("Flatten", "Reshape", "Identity", "Permute", "RepeatVector")
_WORDS = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "ReLU6": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Softplus": "softplus",
}
_MOST = 64  # layers that are followed from an output


def loss_inputs(model: Any) -> list[dict[str, Any]]:
    """Returns an event for each loss of a model whose graph is known, in the order of its outputs.

    A model with a `call` of its own has no such graph, nor has one whose last part is a model: nothing is returned.
    """
    outputs = getattr(model, "outputs", None) or []
    losses = losses_of(model)
    if len(outputs) != len(losses):
        return []
    events, calls = [], {}
    for output, loss in zip(outputs, losses, strict=True):
        kind = loss_kind(loss)
        call = calls[kind] = calls.get(kind, -1) + 1
        made_by, behind = _makers(output)
        if made_by:
            event = {"kind": "loss_input", "loss": kind, "call": call, "made_by": made_by}
            events.append(event | ({"behind": behind} if behind else {}))
    return events


def _makers(tensor: Any) -> tuple[str, str]:
    """Returns what made a tensor, and what made that one's input; "" for what does not limit values."""
    layer, tensor = _layer_of(tensor)
    made_by = _WORDS.get(output_kind(layer), "") if layer is not None else ""
    if not made_by or type(layer).__name__ not in ("Activation", "Softmax", "ReLU"):
        return made_by, ""  # a layer with weights of its own before its activation
    before, _ = _layer_of(tensor)
    if before is None:
        return made_by, ""
    if "Dropout" in type(before).__name__:
        return made_by, "dropout" if getattr(before, "rate", 0) else ""
    return made_by, _WORDS.get(output_kind(before), "")


def _layer_of(tensor: Any) -> tuple[Any, Any]:
    """Returns the layer that made a tensor, but for those that only move values, and its one input."""
    for _ in range(_MOST):
        history = getattr(tensor, "_keras_history", None)
        if history is None:
            return None, None
        layer = history.operation
        inputs = layer._inbound_nodes[history.node_index].input_tensors
        if len(inputs) != 1:
            return layer, None
        if type(layer).__name__ not in _PASSED_OVER:
            return layer, inputs[0]
        tensor = inputs[0]
    return None, None
