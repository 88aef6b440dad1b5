"""Collections of XGBoost."""

from __future__ import annotations

from luff.compat.smdebug.core.collection import Collection, CollectionKeys
from luff.compat.smdebug.core.framework_hook import FrameworkCollections
from luff.compat.smdebug.core.xgboost_names import EXPRESSIONS

__all__ = ["DEFAULT_XGBOOST_COLLECTIONS", "EXPRESSIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_XGBOOST_COLLECTIONS = [CollectionKeys.METRICS]


class CollectionManager(FrameworkCollections):
    """The collections that exist without configuration."""

    expressions = EXPRESSIONS
