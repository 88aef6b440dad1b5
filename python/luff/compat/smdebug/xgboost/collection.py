"""Collections of XGBoost."""

from __future__ import annotations

from luff.compat.smdebug.core.collection import Collection, CollectionKeys
from luff.compat.smdebug.core.collection_manager import CollectionManager as BaseCollectionManager

__all__ = ["DEFAULT_XGBOOST_COLLECTIONS", "Collection", "CollectionKeys", "CollectionManager"]

# What is saved without configuration.
DEFAULT_XGBOOST_COLLECTIONS = [CollectionKeys.METRICS]

EXPRESSIONS = {
    CollectionKeys.ALL: None,
    CollectionKeys.DEFAULT: None,
    CollectionKeys.HYPERPARAMETERS: "^hyperparameters/.*$",
    CollectionKeys.METRICS: "^[a-zA-Z_]+-[a-zA-Z0-9_@.-]+$",
    CollectionKeys.LOSSES: "^[a-zA-Z_]+-(?!(?:auc|map)$)[a-zA-Z0-9_@.-]+$",
    CollectionKeys.PREDICTIONS: "^predictions$",
    CollectionKeys.LABELS: "^labels$",
    CollectionKeys.FEATURE_IMPORTANCE: "^feature_importance/.*",
    CollectionKeys.AVERAGE_SHAP: "^average_shap/(?!bias$).+$",
    CollectionKeys.FULL_SHAP: "^full_shap/(?!bias$).+$",
    CollectionKeys.TREES: "^trees/.*",
}


class CollectionManager(BaseCollectionManager):
    """The collections that there are without configuration."""

    def __init__(self, create_default: bool = True) -> None:
        super().__init__()
        if create_default:
            for name, expression in EXPRESSIONS.items():
                self.add(Collection(name, include_regex=expression))
