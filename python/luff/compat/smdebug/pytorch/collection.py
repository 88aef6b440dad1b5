"""Collections of PyTorch."""

from __future__ import annotations

import re
from typing import Any

from luff.compat.smdebug.core.collection import Collection as BaseCollection
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.framework_hook import MODULE_EXPRESSIONS, FrameworkCollections

__all__ = ["DEFAULT_PYTORCH_COLLECTIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_PYTORCH_COLLECTIONS = [CollectionKeys.LOSSES]

EXPRESSIONS = {**MODULE_EXPRESSIONS, CollectionKeys.LOSSES: "[Ll]oss_(?!input).*output"}


class Collection(BaseCollection):
    """A collection to which modules can be added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules: list[tuple[Any, bool, bool]] = []

    def add_module_tensors(self, module: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Adds the inputs or outputs of a module that is, or will be, registered."""
        self._modules.append((module, inputs, outputs))

    def resolve_modules(self) -> None:
        """Converts the modules to expressions, now that they have names."""
        for module, inputs, outputs in self._modules:
            name = getattr(module, "_module_name", None)
            if name is None:
                continue
            for wanted, suffix in ((inputs, "_input_"), (outputs, "_output_")):
                if wanted:
                    self.include(f"^{re.escape(name)}{suffix}")
        self._modules = []


class CollectionManager(FrameworkCollections):
    """The collections that exist without configuration."""

    expressions = EXPRESSIONS
    kind = Collection
