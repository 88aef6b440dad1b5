"""Reads a booster's parameters and the numbers of its evaluations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from luff._boosting._config import number_in
from luff._boosting._data import Table
from luff._boosting._recorder import Metric

__all__ = ["is_loss", "metrics_of", "parameters_of", "sampled_share", "table_of"]

# Smooth losses that LightGBM computes. Not among them: `binary_error`, a count that may stand still, and metrics that
# rise, such as ranks and areas.
_LOSSES = re.compile(
    r"^(l1|l2|rmse|quantile|huber|fair|poisson|mape|gamma|gamma_deviance|tweedie|binary_logloss|multi_logloss"
    r"|cross_entropy|cross_entropy_lambda|kullback_leibler)$"
)
_MAX_PARAMETERS = 512


def is_loss(metric: str) -> bool:
    """Whether this is one of LightGBM's own metrics that a training lowers smoothly."""
    return _LOSSES.match(metric) is not None


def metrics_of(results: Iterable[Any] | None) -> list[Metric]:
    """Returns the newest value of each metric: evaluation set, metric, value, and in
    cross-validation its deviation.
    """
    found: list[Metric] = []
    for one in results or ():
        data, metric, value, _, *rest = one
        if data == "cv_agg":  # before version 4.7
            data, _, metric = str(metric).partition(" ")
        found.append((str(data), str(metric), float(value), float(rest[0]) if rest else None))
    return found


def parameters_of(booster: Any) -> dict[str, Any]:
    """Returns all settings of a booster under LightGBM's own names, with defaults filled in."""
    text = booster.model_to_string(num_iteration=1, start_iteration=0)
    begin, end = text.find("\nparameters:\n"), text.rfind("\nend of parameters")
    found: dict[str, Any] = {}
    for line in text[begin:end].split("\n") if 0 <= begin < end else ():
        key, colon, value = line.strip("[]").partition(": ")
        if colon and len(found) < _MAX_PARAMETERS:
            found[key] = number_in(value)
    return found


def sampled_share(parameters: dict[str, Any]) -> float:
    """Returns the share of the rows that each tree sees."""
    if parameters.get("boosting") == "goss" or parameters.get("data_sample_strategy") == "goss":
        return min(float(parameters.get("top_rate", 0.2)) + float(parameters.get("other_rate", 0.1)), 1.0)
    if int(parameters.get("bagging_freq", 0)) > 0:
        return float(parameters.get("bagging_fraction", 1.0))
    return 1.0


def table_of(data: Any) -> Table:
    """Returns rows and labels of a `Dataset` as they were given, if they are still there."""
    return Table(getattr(data, "data", None), getattr(data, "label", None))
