"""Hooks whose framework calls them with the inputs and outputs of modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.compat.smdebug.core.collection import CollectionKeys, flatten
from luff.compat.smdebug.core.framework_hook import FrameworkHook

__all__ = ["CallbackHook"]


class CallbackHook(FrameworkHook):
    """A hook whose framework calls it with the inputs and outputs of modules."""

    INPUT_TENSOR_SUFFIX = "_input_"
    OUTPUT_TENSOR_SUFFIX = "_output_"
    GRADIENT_PREFIX = "gradient/"
    SCALAR_PREFIX = "scalar/"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counts: dict[str, int] = {}

    def _increment_step(self) -> None:
        super()._increment_step()
        self._counts.clear()

    def save_tensor(
        self, tensor_name: str, tensor_value: Any, collections_to_write: Any = CollectionKeys.DEFAULT
    ) -> None:
        """Saves a value with the step that is open when the next module has run.

        Parameters
        ----------
        tensor_name, tensor_value
            Name of the tensor, and an array or something that can be converted to one.
        collections_to_write
            Name of a collection, or several.
        """
        try:
            array = np.array(self._make_numpy_array(tensor_value), copy=True)
        except TypeError as error:
            self.logger.warning("tensor %s is left out: %s", tensor_name, error)
            return
        names = flatten([collections_to_write])
        for name in names:
            self.get_collection(name).add_tensor_name(tensor_name)
        self._custom_tensors[tensor_name] = (array, names)

    def _flush_custom_tensors(self) -> None:
        if not self._custom_tensors:
            return
        waiting, self._custom_tensors = self._custom_tensors, {}
        if self.writer is None:
            return
        for name, (array, names) in waiting.items():
            collections = [self.get_collection(n) for n in names]
            for collection in collections:
                if collection.reduction_config is None:
                    collection.reduction_config = self.reduction_config
            self._save_for_tensor(name, array, collections)

    def _flat(self, values: Any) -> list[Any]:
        """Returns the values in tuples and lists, in order."""
        if isinstance(values, (list, tuple)):
            return [item for value in values for item in self._flat(value)]
        return [values]

    def _is_tensor(self, value: Any) -> bool:
        raise NotImplementedError

    # Scripts call these two, and hooks derived from this one override them, so frameworks go through them.

    def _write_inputs(self, name: str, inputs: Any) -> None:
        """Saves the tensors in `inputs` as <name>_input_<k>, if a collection that is due wants them."""
        self._record(name, self.INPUT_TENSOR_SUFFIX, inputs)

    def _write_outputs(self, name: str, outputs: Any) -> None:
        """Saves the tensors in `outputs` as <name>_output_<k>, if a collection that is due wants them."""
        self._record(name, self.OUTPUT_TENSOR_SUFFIX, outputs)

    def _record(self, module_name: str, suffix: str, values: Any) -> None:
        """Saves values as <module_name><suffix><k>; k continues when the module is called again in the step."""
        if self._asleep():
            return
        key = module_name + suffix
        number = self._counts.get(key, 0)
        for value in self._flat(values):
            if self._is_tensor(value):
                self._save_for_tensor(f"{key}{number}", value)
                number += 1
        self._counts[key] = number
