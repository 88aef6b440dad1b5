"""Reads the properties of a booster and its data."""

from __future__ import annotations

import json
import os
from typing import Any

from luff._boosting._config import number_in
from luff._boosting._data import MAX_VALUES, Table
from luff.errors import InvalidArgumentError

__all__ = ["feature_names", "parameters_of", "read_data", "rows_of", "table_of"]

_KINDS = {
    "csv": "csv", "text/csv": "csv",
    "libsvm": "libsvm", "text/libsvm": "libsvm", "text/x-libsvm": "libsvm",
}  # fmt: skip
_MAX_PARAMETERS = 512


def feature_names(booster: Any) -> list[str]:
    """Returns the names of the features; ``f0``, ``f1``, … if they have none."""
    names = booster.feature_names
    return [f"f{index}" for index in range(int(booster.num_features()))] if names is None else list(names)


def rows_of(data: Any) -> int | None:
    """Returns the number of rows of a matrix, or None."""
    try:
        return int(data.num_row())
    except Exception:
        return None


def table_of(data: Any) -> Table:
    """Returns rows and labels of a matrix. Values of a quantised one are those of its bins."""
    import xgboost

    table = Table()
    try:
        labels = data.get_label()
        table.labels = labels if len(labels) else None
        small = data.num_row() * data.num_col() <= MAX_VALUES
        if small and type(data) in (xgboost.DMatrix, xgboost.QuantileDMatrix):
            table.rows = data.get_data()
    except Exception:  # pages of another kind: what was read counts
        return table
    return table


def read_data(data: Any) -> Any:
    """Returns a matrix, or reads one from a file of a given kind.

    Raises
    ------
    InvalidArgumentError
        For anything else, and if the file does not exist.
    """
    import xgboost

    if data is None or isinstance(data, xgboost.DMatrix):
        return data
    if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (str, os.PathLike))):
        raise InvalidArgumentError(f"data is a {type(data).__name__}; expected a DMatrix, or (file, kind)")
    path, kind = os.path.expanduser(os.fspath(data[0])), _KINDS.get(str(data[1]).lower())
    if kind is None:
        raise InvalidArgumentError(
            f"the kind of a data file is {data[1]!r}; expected one of {', '.join(_KINDS)}"
        )
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"there is no such data file; only local files are read: {path}")
    return xgboost.DMatrix(f"{path}?format={kind}" + ("&label_column=0" if kind == "csv" else ""))


def parameters_of(booster: Any) -> tuple[dict[str, Any], str]:
    """Returns all settings of a booster under their own names, with defaults filled in,
    and the kind of the booster.
    """
    learner = json.loads(booster.save_config())["learner"]
    found: dict[str, Any] = {}
    _collect(learner, found, 0)
    objective = learner.get("objective", {})
    if isinstance(objective, dict) and "name" in objective:
        found["objective"] = objective["name"]
    metrics = [m.get("name") for m in learner.get("metrics", []) if isinstance(m, dict)]
    if metrics:
        found["eval_metric"] = ",".join(str(name) for name in metrics)
    return found, str(learner.get("gradient_booster", {}).get("name", ""))


def _collect(node: dict[str, Any], found: dict[str, Any], depth: int) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            if depth < 8:
                _collect(value, found, depth + 1)
        elif isinstance(value, str) and key != "name" and len(found) < _MAX_PARAMETERS:
            found.setdefault(key, number_in(value))
