"""Hooks of Keras are not there yet."""

from __future__ import annotations

raise ImportError(
    "Luff has no hooks of smdebug's for Keras yet: smdebug.pytorch and smdebug.xgboost are "
    "there (docs/migrate/smdebug.md)"
)
