"""Collections of XGBoost."""

from __future__ import annotations

from luff.compat.smdebug.core.collection import Collection, CollectionKeys
from luff.compat.smdebug.core.collection_manager import CollectionManager as BaseCollectionManager
from luff.compat.smdebug.core.xgboost_names import EXPRESSIONS

__all__ = ["DEFAULT_XGBOOST_COLLECTIONS", "EXPRESSIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_XGBOOST_COLLECTIONS = [CollectionKeys.METRICS]


class CollectionManager(BaseCollectionManager):
    """The collections that there are without configuration."""

    def __init__(self, create_default: bool = True) -> None:
        super().__init__()
        if create_default:
            for name, expression in EXPRESSIONS.items():
                self.add(Collection(name, include_regex=expression))
