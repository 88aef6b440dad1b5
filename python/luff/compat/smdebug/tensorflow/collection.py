"""Collections of TensorFlow."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from luff.compat.smdebug.core.collection import Collection as BaseCollection
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.framework_hook import FrameworkCollections
from luff.compat.smdebug.exceptions import SMDebugTypeError

__all__ = ["DEFAULT_TF_COLLECTIONS", "EXPRESSIONS", "Collection", "CollectionManager", "variable_name"]

# What is saved without configuration.
DEFAULT_TF_COLLECTIONS = [CollectionKeys.METRICS, CollectionKeys.LOSSES, CollectionKeys.SM_METRICS]

EXPRESSIONS: dict[str, str | None] = {
    CollectionKeys.ALL: None,
    CollectionKeys.DEFAULT: None,
    CollectionKeys.WEIGHTS: None,
    CollectionKeys.BIASES: "^(?!gradient)(.*/)?weights/.*bias",  # excludes an optimizer's state of a bias
    CollectionKeys.GRADIENTS: None,
    CollectionKeys.LOSSES: None,
    CollectionKeys.METRICS: None,
    CollectionKeys.INPUTS: None,
    CollectionKeys.OUTPUTS: None,
    CollectionKeys.LAYERS: None,
    CollectionKeys.SM_METRICS: None,
    CollectionKeys.OPTIMIZER_VARIABLES: None,
}


def variable_name(variable: Any) -> str:
    """Returns the name of a variable, ending in the number of the output; Keras 3's variables are named by path."""
    path = getattr(variable, "path", None)
    return f"{path}:0" if isinstance(path, str) else str(variable.name)


class Collection(BaseCollection):
    """A collection to which variables and layers of Keras can be added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.variables: dict[str, Any] = {}

    def add(self, arg: Any) -> None:
        """Adds a variable, or several in lists.

        Raises
        ------
        SMDebugTypeError
            For tensors and operations: they have values in graphs of TensorFlow 1 only.
        """
        if isinstance(arg, (list, tuple, set)):
            for item in arg:
                self.add(item)
        elif isinstance(arg, tf.Variable) or hasattr(arg, "path"):
            name = variable_name(arg)
            self.variables[name] = arg
            self.add_tensor_name(name)
        else:
            raise SMDebugTypeError(
                f"collection {self.name!r}: found {type(arg).__name__}, expected a variable; "
                "a tensor is saved by hook.save_tensor"
            )

    def add_keras_layer(self, layer: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Adds the inputs or outputs of a layer."""
        for wanted, what in ((inputs, "inputs"), (outputs, "outputs")):
            if wanted:
                self.include(f"^{re.escape(layer.name)}/{what}")


class CollectionManager(FrameworkCollections):
    """The default collections."""

    expressions = EXPRESSIONS
    kind = Collection
