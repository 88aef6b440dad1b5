"""Which layer made what a loss of a compiled model gets, as the model's own graph shows it: events `loss_input`."""

from __future__ import annotations

from typing import Any

import keras

from luff.keras._graphs import layer_of
from luff.keras._kinds import loss_kind, output_kind

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
_OF_SCORES = ("CrossEntropyLoss", "BCEWithLogitsLoss")
_POOLING = ("GlobalAveragePooling", "GlobalMaxPooling", "AveragePooling", "MaxPooling")
_MOST = 64  # layers that are followed from an output


def loss_inputs(model: Any) -> list[dict[str, Any]]:
    """Returns an event for each loss of a model whose graph is known, in the order of its losses.

    A model with a `call` of its own has no such graph, nor has one whose last part is a model: nothing is returned.
    """
    events: list[dict[str, Any]] = []
    calls: dict[str, int] = {}
    for loss, output in _judged(model):
        kind = loss_kind(loss)
        call = calls[kind] = calls.get(kind, -1) + 1
        made_by, behind = _makers(output)
        if (
            made_by in ("softmax", "sigmoid")
            and kind in _OF_SCORES
            and keras.backend.backend() == "tensorflow"
        ):
            continue  # Keras takes what was before it, and warns
        if made_by:
            event = {"kind": "loss_input", "loss": kind, "call": call, "made_by": made_by}
            events.append(event | ({"behind": behind} if behind else {}))
    return events


def _judged(model: Any) -> list[tuple[Any, Any]]:
    """Returns the losses of a model, each with the output that it gets; none if that is not known of one.

    A dictionary of outputs has another order in `model.outputs` than its losses have.
    """
    outputs = getattr(model, "outputs", None) or []
    compiled = getattr(model, "_compile_loss", None)
    flat = [item for item in getattr(compiled, "_flat_losses", None) or [] if getattr(item, "loss", None)]
    if len(outputs) != len(flat):
        return []
    if len(outputs) == 1:
        return [(flat[0].loss, outputs[0])]
    pairs = []
    for item in flat:
        output: Any = getattr(model, "_outputs_struct", None)
        for key in getattr(item, "path", ()):
            try:
                output = output[key]
            except (KeyError, IndexError, TypeError):
                return []
        if not any(output is one for one in outputs):
            return []
        pairs.append((item.loss, output))
    return pairs


def _makers(tensor: Any) -> tuple[str, str]:
    """Returns what made a tensor, and what made that one's input; "" for what does not limit values."""
    layer, tensor = _layer_of(tensor)
    if _pools(layer):
        return _pooled(tensor), ""
    made_by = _word(layer)
    if not made_by or type(layer).__name__ not in ("Activation", "Softmax", "ReLU"):
        return made_by, ""  # a layer with weights of its own before its activation
    before, tensor = _layer_of(tensor)
    if before is None:
        return made_by, ""
    if "Dropout" in type(before).__name__:
        return made_by, "dropout" if getattr(before, "rate", 0) else ""
    return made_by, _pooled(tensor) if _pools(before) else _word(before)


def _word(layer: Any) -> str:
    """Returns what a layer does with values last; "" if it does not limit them, as a ReLU with a slope below 0."""
    if layer is None or getattr(layer, "negative_slope", None):
        return ""
    return _WORDS.get(output_kind(layer), "")


def _pools(layer: Any) -> bool:
    return type(layer).__name__.startswith(_POOLING)


def _pooled(tensor: Any) -> str:
    """Returns "pooled_relu" if what is pooled over places is what a ReLU gives."""
    return "pooled_relu" if _word(_layer_of(tensor)[0]) == "relu" else ""


def _layer_of(tensor: Any) -> tuple[Any, Any]:
    """Returns the layer that made a tensor, but for those that only move values, and its one input."""
    for _ in range(_MOST):
        layer, inner = layer_of(tensor)
        if inner is None or type(layer).__name__ not in _PASSED_OVER:
            return layer, inner
        tensor = inner
    return None, None
