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

#: Most values of a data set that is read.
MAX_VALUES = 1 << 20
_MAX_LABELS = 1 << 20
_MAX_COLUMNS = 256
_MAX_EVALUATIONS = 4
_KEPT = 1 << 16  # rows of the training that are compared: of more, those of some hashes
_LOOKED = 2048
_MOMENTS = 1 << 14  # rows, and labels, of which moments and quantiles are taken
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
    """Returns the facts of the training and those of each evaluation; empty where nothing is known.

    Rows are compared with their labels. Of the first four evaluations only.
    """
    with np.errstate(all="ignore"):  # values that single precision does not hold
        return _described_all(training, evaluations)


def _described_all(
    training: Table, evaluations: Sequence[Table]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    own = _described(training)
    found = [_described(one) for one in evaluations[:_MAX_EVALUATIONS]]
    found += [{} for _ in evaluations[_MAX_EVALUATIONS:]]
    rows = _numbers(training.rows)
    if rows is None or not len(rows) or all(one.rows is None for one in evaluations):
        return own, found
    columns = _places(rows.shape[1], _MAX_COLUMNS)
    hashes = _hashes(rows, columns)
    parts = np.uint64(-(-len(hashes) // _KEPT))
    kept = np.flatnonzero(hashes % parts == 0)
    labels = _labels(training, len(rows))
    whole = None if labels is None else np.unique(_with(hashes[kept], labels[kept]))
    values, counts = np.unique(hashes[kept], return_counts=True)
    looked = hashes[kept[_places(len(kept), _LOOKED)]]
    own["looked"] = len(looked)
    own["repeated"] = int(np.sum(counts[np.searchsorted(values, looked)] > 1)) if len(looked) else 0
    own["columns"] = _columns(rows, columns)
    for facts, one in zip(found, evaluations[:_MAX_EVALUATIONS], strict=False):
        others = _numbers(one.rows)
        if others is None or not len(others) or others.shape[1] != rows.shape[1]:
            continue
        facts["columns"] = _columns(others, columns)
        other_labels = _labels(one, len(others))
        if whole is None or other_labels is None:
            continue
        some = _hashes(others, columns)
        places = np.flatnonzero(some % parts == 0)
        places = places[_places(len(places), _LOOKED)]
        facts["looked"] = len(places)
        alike = _among(some[places], values)
        equal = _among(_with(some[places], other_labels[places]), whole)
        # Rows that are equal, and have another label, are others: the same customers a month later.
        facts["known"] = int(equal.sum()) if np.array_equal(alike, equal) else 0
    return own, found


def _labels(table: Table, count: int) -> Any:
    """Returns a label of each row; None if they are not numbers, or not as many."""
    labels = None if table.labels is None else np.asarray(table.labels)
    return labels if labels is not None and labels.shape == (count,) and labels.dtype.kind in "fiub" else None


def _with(hashes: Any, labels: Any) -> Any:
    """Returns hashes of rows with their labels."""
    bits = (labels.astype(np.float32) + np.float32(0)).view(np.uint32)
    return (hashes ^ bits) * np.uint64(0x9E3779B97F4A7C15)


def _among(some: Any, values: Any) -> Any:
    """Returns of each of some numbers whether it is one of the sorted ones."""
    if not len(values):
        return np.zeros(len(some), dtype=bool)
    return values[np.minimum(np.searchsorted(values, some), len(values) - 1)] == some


def _described(table: Table) -> dict[str, Any]:
    labels = None if table.labels is None else np.asarray(table.labels)
    if labels is None or labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "fiub":
        return {}
    kept = labels[_places(len(labels), _MAX_LABELS)]
    least, most = float(kept.min()), float(kept.max())
    if not np.isfinite(least) or not np.isfinite(most):
        return {}
    kept = kept[_places(len(kept), _MOMENTS)].astype(np.float64)
    low, middle, high = np.quantile(kept, (0.1, 0.5, 0.9))
    numbers = {
        "least": least, "low": low, "middle": middle, "high": high, "most": most,
        "mean": kept.mean(), "deviation": kept.std(),
    }  # fmt: skip
    short = {key: _short(value) for key, value in numbers.items()}
    return {} if None in short.values() else {"labels": {"count": len(labels), **short}}


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


def _columns(rows: Any, columns: Any) -> dict[str, list[float | None]]:
    values = rows[_places(len(rows), _MOMENTS)][:, columns].astype(np.float64)
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=0), 1)
    means = np.where(known, values, 0).sum(axis=0) / count
    deviations = np.sqrt((np.where(known, values - means, 0) ** 2).sum(axis=0) / count)
    return {"means": [_short(v) for v in means], "deviations": [_short(v) for v in deviations]}


def _short(value: Any) -> float | None:
    """Returns a number of few digits; None, which JSON can hold, for what is not finite."""
    return float(f"{float(value):.{_DIGITS}g}") if np.isfinite(value) else None
