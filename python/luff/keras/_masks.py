"""Which inputs of a model a mask hides steps of, as the model's own graph shows it: events `masked_input`."""

from __future__ import annotations

import math
from typing import Any

from luff.keras._graphs import nodes_of

__all__ = ["masked_inputs"]

#: Layers that leave out, or weigh 0, the steps that a mask hides.
_SKIPPING = ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional", "ConvLSTM", "GlobalAveragePooling1D")
_ATTENDING = ("MultiHeadAttention", "Attention", "AdditiveAttention", "GroupQueryAttention")


def masked_inputs(model: Any) -> list[dict[str, Any]]:
    """Returns an event for each input that goes into a layer which masks its steps, if another layer heeds masks."""
    nodes = nodes_of(model)
    if not any(_heeds(node.operation) for node in nodes):
        return []
    places = {id(tensor): place for place, tensor in enumerate(getattr(model, "inputs", None) or [])}
    events = []
    for node in nodes:
        value = _masked(node.operation)
        tensors = node.input_tensors
        if value is None or len(tensors) != 1:
            continue
        place = places.get(id(tensors[0]))
        if place is not None:
            ids = type(node.operation).__name__ == "Embedding"
            event = {"kind": "masked_input", "model": str(model.name), "input": place, "value": value}
            events.append(event | {"ids": ids})
    return events


def _masked(layer: Any) -> float | None:
    """Returns the value that says that a step is masked; None if the layer masks none."""
    if type(layer).__name__ == "Masking":
        try:
            value = float(layer.mask_value)
        except (TypeError, ValueError):
            return None
        return value if math.isfinite(value) else None  # NaN equals nothing: it masks no step
    if type(layer).__name__ == "Embedding" and getattr(layer, "mask_zero", False):
        return 0.0
    return None


def _heeds(layer: Any) -> bool:
    kind = type(layer).__name__
    return kind in _ATTENDING or kind.startswith(_SKIPPING)
