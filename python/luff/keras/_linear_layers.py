"""Finds dense layers that follow each other with nothing between them, in a model's own graph: `linear_layers`."""

from __future__ import annotations

from typing import Any

from luff.keras._graphs import nodes_of
from luff.keras._names import Names

__all__ = ["linear_layers"]

_MOST = 16  # pairs
#: Layers that leave two dense ones one linear function; moves of axes would change which one.
_PASSING = frozenset(
    ("Flatten", "Reshape", "Identity", "Dropout", "BatchNormalization")
    + ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")
)
#: A graph of nothing but these, of passing ones and of layers without an activation is linear in its input.
_LINEAR = frozenset(
    ("InputLayer", "Permute", "Rescaling", "Normalization")
    + ("AveragePooling1D", "AveragePooling2D", "AveragePooling3D")
    + ("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D")
    + ("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D")
)
_WITH_WEIGHTS = frozenset(("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D"))


def linear_layers(model: Any, names: Names) -> list[dict[str, Any]]:
    """Returns an event if a dense layer gets what another gives, and nothing else gets it; at most one."""
    nodes = nodes_of(model)
    users: dict[int, list[Any]] = {id(output): [None] for output in getattr(model, "outputs", None) or []}
    calls: dict[int, int] = {}
    for node in nodes:
        calls[id(node.operation)] = calls.get(id(node.operation), 0) + 1
        for tensor in node.input_tensors:
            users.setdefault(id(tensor), []).append(node)
    pairs = []
    for node in nodes:
        if not _is_dense(node.operation) or calls[id(node.operation)] > 1:
            continue
        second = _second(node, users)
        if second is not None and calls[id(second)] == 1:
            pairs.append([names.of(layer.kernel).name for layer in (node.operation, second)])
    if not pairs:
        return []
    ends = {id(node) for node in nodes if all(users.get(id(tensor)) == [None] for tensor in node.outputs)}
    linear = all(_is_linear(node.operation, id(node) in ends) for node in nodes)
    return [{"kind": "linear_layers", "pairs": sorted(pairs)[:_MOST], "linear": linear}]


def _second(first: Any, users: dict[int, list[Any]]) -> Any:
    """Returns the dense layer that alone gets what a node gives, through layers that pass it on; else None."""
    if getattr(first.operation, "activity_regularizer", None) is not None or not _bends_nothing(
        first.operation
    ):
        return None
    node = first
    while len(node.outputs) == 1:
        using = users.get(id(node.outputs[0]), [])
        if len(using) != 1 or using[0] is None or len(using[0].input_tensors) != 1:
            return None
        node = using[0]
        if _is_dense(node.operation):
            return node.operation
        if type(node.operation).__name__ not in _PASSING and not _is_no_activation(node.operation):
            return None
    return None


def _is_dense(layer: Any) -> bool:
    """Whether it is Keras' own dense layer, which multiplies by its kernel and does not constrain it."""
    return (
        type(layer).__name__ == "Dense"
        and type(layer).__module__.startswith("keras.")
        and not getattr(layer, "lora_enabled", False)
        and getattr(layer, "kernel_constraint", None) is None
        and getattr(layer, "kernel", None) is not None
    )


def _bends_nothing(layer: Any) -> bool:
    return getattr(getattr(layer, "activation", None), "__name__", "linear") == "linear"


def _is_no_activation(layer: Any) -> bool:
    return type(layer).__name__ == "Activation" and _bends_nothing(layer)


def _is_linear(layer: Any, ends: bool) -> bool:
    """Whether a layer is linear; of one that ends the model, but for its activation."""
    if not type(layer).__module__.startswith("keras."):
        return False
    kind = type(layer).__name__
    if ends and kind in ("Activation", "Softmax"):
        return True
    if kind in _WITH_WEIGHTS:
        return ends or _bends_nothing(layer)
    return kind in _PASSING or kind in _LINEAR or _is_no_activation(layer)
