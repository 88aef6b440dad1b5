"""What the rows and labels of a training and of its evaluations have in common, and how they are distributed.

Facts of the document `boosting` (docs/spec/evidence.md). Looked at once in a training, after its first round. Data sets
of more than `MAX_VALUES` values are not read; of the others some rows are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MAX_VALUES", "Table", "describe_data"]

#: Values of a data set that is read: about 20 ms.
MAX_VALUES = 1 << 21
_MAX_LABELS = 1 << 20
_MAX_COLUMNS = 256
_LOOKED = 2048
_DIGITS = 7


@dataclass
class Table:
    """A data set as it was given.

    Attributes
    ----------
    rows
        Two axes, of numbers; None if they are not at hand, or are too many.
    labels
        One axis, of numbers; None if there are none.
    """

    rows: Any = None
    labels: Any = None


def describe_data(
    training: Table, evaluations: Sequence[Table]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the facts of the training and those of each evaluation; empty where nothing is known."""
    own = _described(training)
    found = [_described(one) for one in evaluations]
    rows = _numbers(training.rows)
    if rows is None or not len(rows) or all(one.rows is None for one in evaluations):
        return own, found
    columns = _places(rows.shape[1], _MAX_COLUMNS)
    hashes = _hashes(rows, columns)
    counts = np.unique(hashes, return_counts=True)
    looked = hashes[_places(len(hashes), _LOOKED)]
    own["looked"] = len(looked)
    own["repeated"] = int(np.sum(counts[1][np.searchsorted(counts[0], looked)] > 1))
    own["columns"] = _columns(rows, columns)
    for facts, one in zip(found, evaluations, strict=True):
        others = _numbers(one.rows)
        if others is None or not len(others) or others.shape[1] != rows.shape[1]:
            continue
        some = _hashes(others[_places(len(others), _LOOKED)], columns)
        facts["looked"] = len(some)
        facts["known"] = int(np.sum(np.isin(some, counts[0])))
        facts["columns"] = _columns(others, columns)
    return own, found


def _described(table: Table) -> dict[str, Any]:
    labels = None if table.labels is None else np.asarray(table.labels)
    if labels is None or labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "fiub":
        return {}
    kept = labels[_places(len(labels), _MAX_LABELS)].astype(np.float64)
    if not np.all(np.isfinite(kept)):
        return {}
    low, middle, high = np.quantile(kept, (0.1, 0.5, 0.9))
    numbers = {
        "least": kept.min(), "low": low, "middle": middle, "high": high, "most": kept.max(),
        "mean": kept.mean(), "deviation": kept.std(),
    }  # fmt: skip
    return {"labels": {"count": len(labels), **{key: _short(value) for key, value in numbers.items()}}}


def _numbers(rows: Any) -> Any:
    """Returns the rows as an array; None if they are no table of numbers of a size that is read."""
    shape: Any = getattr(rows, "shape", ())
    if len(shape) != 2 or not 0 < shape[0] * shape[1] <= MAX_VALUES:
        return None
    if hasattr(rows, "toarray"):
        rows = rows.toarray()
    elif hasattr(rows, "dtypes"):  # a data frame
        if not all(getattr(kind, "kind", "") in "fiub" for kind in rows.dtypes):
            return None
        rows = rows.to_numpy()
    return rows if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiub" else None


def _places(count: int, most: int) -> Any:
    """Returns at most so many places, evenly apart."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


def _hashes(rows: Any, columns: Any) -> Any:
    """Returns a hash of each row, of its values in single precision."""
    found = np.zeros(len(rows), dtype=np.uint64)
    for place in columns:
        bits = (np.ascontiguousarray(rows[:, place], dtype=np.float32) + np.float32(0)).view(np.uint32)
        found = (found ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found


def _columns(rows: Any, columns: Any) -> dict[str, list[float]]:
    values = rows[:, columns].astype(np.float64)
    with np.errstate(all="ignore"):
        known = np.isfinite(values)
        count = np.maximum(known.sum(axis=0), 1)
        means = np.where(known, values, 0).sum(axis=0) / count
        deviations = np.sqrt((np.where(known, values - means, 0) ** 2).sum(axis=0) / count)
    return {"means": [_short(v) for v in means], "deviations": [_short(v) for v in deviations]}


def _short(value: Any) -> float:
    return float(f"{float(value):.{_DIGITS}g}")
