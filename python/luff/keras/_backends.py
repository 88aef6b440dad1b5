"""Selects what records values, by backend: each module is imported when Keras uses its backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from luff.keras._hook import Callback
    from luff.keras._values import Values

__all__ = ["make_values"]


def make_values(hook: Callback) -> Values:
    """Makes the `Values` of the backend that Keras uses.

    Raises
    ------
    ImportError
        If the backend is not supported.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from luff.keras._tensorflow_values import TensorFlowValues

        return TensorFlowValues(hook)
    if name == "jax":
        from luff.keras._jax_values import JaxValues

        return JaxValues(hook)
    if name == "torch":
        from luff.keras._torch_values import TorchValues

        return TorchValues(hook)
    raise ImportError(f"Keras' backend is {name}; those that are watched: tensorflow, jax, torch")
