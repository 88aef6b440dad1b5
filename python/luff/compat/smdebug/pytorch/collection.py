"""Collections of PyTorch."""

from __future__ import annotations

import re
from typing import Any

from luff.compat.smdebug.core.collection import Collection as BaseCollection
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.collection_manager import CollectionManager as BaseCollectionManager

__all__ = ["DEFAULT_PYTORCH_COLLECTIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_PYTORCH_COLLECTIONS = [CollectionKeys.LOSSES]

EXPRESSIONS = {
    CollectionKeys.ALL: None,
    CollectionKeys.DEFAULT: None,
    CollectionKeys.WEIGHTS: "^(?!gradient).*weight",
    CollectionKeys.BIASES: "^(?!gradient).*bias",
    CollectionKeys.GRADIENTS: "^gradient",
    CollectionKeys.LOSSES: "[Ll]oss_(?!input).*output",
}


class Collection(BaseCollection):
    """A collection to which modules can be added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules: list[tuple[Any, bool, bool]] = []

    def add_module_tensors(self, module: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Add inputs or outputs of a module that is, or will be, registered."""
        self._modules.append((module, inputs, outputs))

    def resolve_modules(self) -> None:
        """Turn the modules into expressions, now that they have names."""
        for module, inputs, outputs in self._modules:
            name = getattr(module, "_module_name", None)
            if name is None:
                continue
            for wanted, suffix in ((inputs, "_input_"), (outputs, "_output_")):
                if wanted:
                    self.include(f"^{re.escape(name)}{suffix}")
        self._modules = []


class CollectionManager(BaseCollectionManager):
    """The collections that there are without configuration."""

    def __init__(self, create_default: bool = True) -> None:
        super().__init__()
        if create_default:
            for name, expression in EXPRESSIONS.items():
                self.add(Collection(name, include_regex=expression))

    def _make(self, name: str) -> Collection:
        return Collection(name)
