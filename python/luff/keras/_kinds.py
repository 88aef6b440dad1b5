"""Translates types of layers, activations and losses to PyTorch's names, which rules look at."""

from __future__ import annotations

from typing import Any

__all__ = ["activation_of", "layer_kind", "loss_kind", "losses_of", "output_kind"]

_LAYERS = {
    "Dense": "Linear",
    "EinsumDense": "Linear",
    "Conv1D": "Conv1d",
    "Conv2D": "Conv2d",
    "Conv3D": "Conv3d",
    "Conv1DTranspose": "ConvTranspose1d",
    "Conv2DTranspose": "ConvTranspose2d",
    "Conv3DTranspose": "ConvTranspose3d",
    "SimpleRNN": "RNN",
    "SimpleRNNCell": "RNNCell",
    "MultiHeadAttention": "MultiheadAttention",
    "LayerNormalization": "LayerNorm",
    "SpatialDropout1D": "Dropout1d",
    "SpatialDropout2D": "Dropout2d",
    "SpatialDropout3D": "Dropout3d",
    "LeakyReLU": "LeakyReLU",
    "BatchNormalization": "BatchNorm",
    "GroupNormalization": "GroupNorm",
}
_ACTIVATIONS = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "Hardsigmoid",
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "gelu": "GELU",
    "silu": "SiLU",
    "swish": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "leaky_relu": "LeakyReLU",
}
_RECURRENT = ("LSTM", "GRU", "SimpleRNN")  # their activation is an inner one, not that of the output
_LOSSES = {
    ("sparsecategoricalcrossentropy", True): "CrossEntropyLoss",
    ("categoricalcrossentropy", True): "CrossEntropyLoss",
    ("binarycrossentropy", True): "BCEWithLogitsLoss",
    ("binarycrossentropy", False): "BCELoss",
    ("meansquarederror", False): "MSELoss",
    ("meanabsoluteerror", False): "L1Loss",
    ("huber", False): "HuberLoss",
}
_SHORT = {"mse": "meansquarederror", "mae": "meanabsoluteerror"}


def activation_of(layer: Any) -> str:
    """Returns the activation that ends a layer: "" for none, or for one without a known name."""
    kind = type(layer).__name__
    if kind.startswith(_RECURRENT):
        return ""
    activation = getattr(layer, "activation", None)
    return _ACTIVATIONS.get(str(getattr(activation, "__name__", "")), "")


def layer_kind(layer: Any) -> str:
    """Returns the type of a layer without its activation."""
    kind = type(layer).__name__
    if kind == "Activation":
        return activation_of(layer) or kind
    if kind == "ReLU" and getattr(layer, "max_value", None) == 6:
        return "ReLU6"
    return _LAYERS.get(kind, kind)


def output_kind(layer: Any) -> str:
    """Returns the type of a layer's output: that of its activation if it has one."""
    return activation_of(layer) or layer_kind(layer)


def loss_kind(loss: Any) -> str:
    """Returns the name of a loss, as in the names of its tensors."""
    kind = type(loss).__name__
    stem = kind
    if kind == "LossFunctionWrapper":
        stem = str(getattr(getattr(loss, "fn", None), "__name__", "loss"))
        kind = "".join(word.capitalize() for word in stem.split("_"))
    settings = getattr(loss, "_fn_kwargs", None) or {}
    logits = bool(settings.get("from_logits", getattr(loss, "from_logits", False)))
    stem = stem.replace("_", "").lower()
    return _LOSSES.get((_SHORT.get(stem, stem), logits), kind)


def losses_of(model: Any) -> list[Any]:
    """Returns the losses that a model was compiled with, as far as they are known."""
    compiled = getattr(model, "_compile_loss", None)
    flat = getattr(compiled, "_flat_losses", None) or []
    found = [getattr(item, "loss", None) for item in flat]
    return [loss for loss in found if loss is not None]
