"""Collections of MXNet."""

from __future__ import annotations

import re
from typing import Any

from luff.compat.smdebug.core.collection import Collection as BaseCollection
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.framework_hook import MODULE_EXPRESSIONS, FrameworkCollections

__all__ = ["DEFAULT_MXNET_COLLECTIONS", "EXPRESSIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_MXNET_COLLECTIONS = [CollectionKeys.LOSSES]

EXPRESSIONS = {**MODULE_EXPRESSIONS, CollectionKeys.LOSSES: ".*loss._(?!input).*output"}


class Collection(BaseCollection):
    """A collection to which blocks can be added."""

    def add_block_tensors(self, block: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Adds the inputs or outputs of a block."""
        for wanted, suffix in ((inputs, "_input_"), (outputs, "_output_")):
            if wanted:
                self.include(f"^{re.escape(block.name)}{suffix}")


class CollectionManager(FrameworkCollections):
    """The collections that exist without configuration."""

    expressions = EXPRESSIONS
    kind = Collection
