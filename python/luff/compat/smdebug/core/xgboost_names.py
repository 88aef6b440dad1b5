"""Names and expressions of XGBoost's collections; importable without XGBoost."""

from __future__ import annotations

from luff.compat.smdebug.core.collection import CollectionKeys

__all__ = ["EXPRESSIONS"]

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
