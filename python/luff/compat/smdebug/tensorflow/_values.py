"""Reads values inside Keras models: what layers and optimizers compute, eagerly or in a compiled graph.

In a graph, a value is kept in a variable, as in `luff.keras`, and read at the end of the batch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from luff._codes import Role
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.keras._table import Spec
from luff.keras._tensorflow import Kept
from luff.keras._tensorflow_graphs import in_graph, in_xla

__all__ = ["Wrappings", "layers_of", "to_numpy"]

_OTHER = int(Role.OTHER)


def to_numpy(value: Any) -> Any:
    """Returns the values of a tensor or a variable; bfloat16 becomes float32, sparse values become dense."""
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    elif isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    elif isinstance(value, tf.RaggedTensor):
        value = value.to_tensor()
    found = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def layers_of(model: Any) -> Iterator[Any]:
    """Yields the layers of a model and of the models inside it, each once."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        for layer in getattr(waiting.pop(), "layers", []):
            if id(layer) in seen:
                continue
            seen.add(id(layer))
            if isinstance(layer, keras.Model):
                waiting.append(layer)
            else:
                yield layer


class Wrappings:
    """Wraps models and optimizers, for one hook.

    Parameters
    ----------
    wants
        Returns whether a tensor of this name is to be saved at any step.
    also
        Takes two names: the second is to be saved whenever the first is.
    give
        Takes (name, value) of a value computed eagerly.
    """

    def __init__(
        self,
        wants: Callable[[str], bool],
        also: Callable[[str, str], None],
        give: Callable[[str, Any], None],
    ) -> None:
        self._wants = wants
        self._also = also
        self._give = give
        self._wrapped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._kept: dict[Any, tuple[Kept, list[str]]] = {}  # by mode
        self.mode: Any = None

    def layers(self, model: Any, name_of: Callable[[Any], None]) -> bool:
        """Wraps the layers whose inputs or outputs are wanted. Returns True if it wrapped any."""
        fresh = False
        for layer in layers_of(model):
            name_of(layer)
            wanted = self._wants(f"{layer.name}/inputs") or self._wants(f"{layer.name}/outputs")
            if wanted and layer not in self._wrapped:
                self._wrapped.add(layer)
                layer.call = self._call(layer, layer.call)
                fresh = True
        return fresh

    def optimizer(self, optimizer: Any, name_of: Callable[[Any], str]) -> bool:
        """Wraps an optimizer whose gradients are wanted. Returns True if it was not wrapped yet."""
        if optimizer is None or optimizer in self._wrapped:
            return False
        self._wrapped.add(optimizer)
        apply = optimizer.apply

        @functools.wraps(apply)
        def watched(grads: Any, trainable_variables: Any = None) -> Any:
            variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
            for gradient, variable in zip(grads, variables, strict=False):
                if gradient is not None:
                    self._see(name_of(variable), gradient)
            return apply(grads, trainable_variables)

        optimizer.apply = watched
        return True

    def kept(self, mode: Any) -> list[tuple[str, Any]]:
        """Returns (name, value) of the values that the graphs of a mode have kept."""
        found = self._kept.get(mode)
        values = [] if found is None else [(name, found[0].value(name)) for name in found[1]]
        return [(name, value) for name, value in values if value is not None]

    def _call(self, layer: Any, call: Any) -> Any:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            self._several(f"{layer.name}/inputs", args)
            self._several(f"{layer.name}/outputs", outputs)
            return outputs

        return watched

    @error_handling_agent.catch_smdebug_errors()
    def _several(self, name: str, values: Any) -> None:
        if not self._wants(name):
            return
        flat = [value for value in tf.nest.flatten(values) if tf.is_tensor(value)]
        for index, value in enumerate(flat):
            full = name if len(flat) == 1 else f"{name}_{index}"
            self._also(name, full)
            self._see(full, value)

    @error_handling_agent.catch_smdebug_errors()
    def _see(self, name: str, value: Any) -> None:
        if not in_graph():
            self._give(name, value)
        elif not in_xla() and self.mode is not None and not isinstance(value, keras.KerasTensor):
            kept, names = self._kept.setdefault(self.mode, (Kept(), []))
            kept.keep(Spec(name, _OTHER), value)
            if name not in names:
                names.append(name)
