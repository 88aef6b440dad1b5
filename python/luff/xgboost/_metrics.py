"""Classifies and reads metrics: which are losses that a training lowers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["is_loss", "latest"]

# Smooth losses that XGBoost computes. Not among them: `error`, a count that may stand still, and metrics that rise,
# such as ranks and areas.
_LOSSES = re.compile(
    r"^(rmse|rmsle|mae|mape|mphe|logloss|mlogloss|poisson-nloglik|gamma-nloglik|gamma-deviance|cox-nloglik"
    r"|tweedie-nloglik(@.*)?|aft-nloglik|quantile|expectile)$"
)


def is_loss(metric: str) -> bool:
    """Whether this is one of XGBoost's own metrics that a training lowers smoothly."""
    return _LOSSES.match(metric) is not None


def latest(log: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, float, float | None]]:
    """Yields the newest value of each metric: evaluation set, metric, value, and in
    cross-validation its deviation.
    """
    for data, metrics in log.items():
        for metric, history in metrics.items():
            if not history:
                continue
            value = history[-1]
            if isinstance(value, (tuple, list)):
                yield data, metric, float(value[0]), float(value[1])
            else:
                yield data, metric, float(value), None
