"""What a call of CTC loss was given that it cannot learn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._memory import (
    INTEGERS,
    Array,
    address_of,
    array_view,
    copy_of_rows,
    is_readable,
    numbers_in,
)

__all__ = ["ctc_breaks"]

_ELEMENTS = 1 << 16  # of targets that are read
_ROWS = 64  # whose scores at the first step are read
#: How far the logarithm of the sum of exponentials may be from 0; bfloat16 rounds each of them by up to 1 / 256.
_NORMALISED, _NORMALISED_16 = 1e-2, 5e-2


def ctc_breaks(log_probs: Any, targets: Any, inputs: Any, lengths: Any, blank: Any) -> list[str] | None:
    """Returns what PyTorch's documentation asks for and the call has not, in this order; None if it cannot be read.

    Parameters
    ----------
    log_probs
        (T, N, C) or (T, C): logarithms of probabilities.
    targets
        Integers, (N, S) or all of them one after the other.
    inputs, lengths
        N lengths each, of the rows of log_probs (T or less) and of the targets.

    Returns
    -------
    ``scores``: no row at the first step holds logarithms of probabilities; ``probabilities``: they hold
    probabilities; ``blank``: a target holds the blank; ``short``: more than half of the rows have fewer steps
    than their targets need, one for each label and one between two labels that are equal.
    """
    first, labels = _scores(log_probs), _integers(targets)
    needed, given = _lengths(lengths), _lengths(inputs)
    if first is None or labels is None or needed is None or given is None or not isinstance(blank, int):
        return None
    rows = _rows(labels, needed)
    if rows is None or given.size != len(rows) or not rows:
        return None
    found = []
    close = _NORMALISED_16 if log_probs.element_size() < 4 else _NORMALISED
    if (kind := _kind(first, close)) != "logarithms":
        found.append(kind)
    if any((row == blank).any() for row in rows):
        found.append("blank")
    steps = [row.size + int(np.count_nonzero(row[1:] == row[:-1])) for row in rows]
    if 2 * np.count_nonzero(given < np.asarray(steps)) > len(rows):
        found.append("short")
    return found


def _scores(log_probs: Any) -> Array | None:
    """Returns the scores (rows, C) at the first step."""
    fits = is_readable(log_probs) and log_probs.ndim in (2, 3) and 0 < log_probs.shape[-1] <= _ELEMENTS
    words = copy_of_rows(log_probs, 1) if fits and log_probs.numel() else None
    if words is None:
        return None
    values = numbers_in(words.reshape(-1, words.shape[-1])[:_ROWS], log_probs.dtype)
    return None if values is None else np.asarray(values, np.float64)


def _kind(rows: Array, close: float) -> str:
    if not np.isfinite(rows[rows != -np.inf]).all():
        return "logarithms"  # NonFinite tells of these
    rows = rows[rows.max(1) > -np.inf]  # others are masked
    if not len(rows):
        return "logarithms"
    with np.errstate(all="ignore"):
        top = rows.max(1)
        sums = np.log(np.exp(rows - top[:, None]).sum(1)) + top
        if (np.abs(sums) < close).any():
            return "logarithms"
        shares = (rows >= 0).all() and (np.abs(rows.sum(1) - 1) < close).all()
    return "probabilities" if shares else "scores"


def _integers(tensor: Any) -> Array | None:
    if not is_readable(tensor) or tensor.numel() > _ELEMENTS or tensor.dtype not in INTEGERS:
        return None
    return array_view(tensor, INTEGERS[tensor.dtype]) if address_of(tensor) or not tensor.numel() else None


def _lengths(lengths: Any) -> Array | None:
    if isinstance(lengths, (tuple, list)) and all(isinstance(one, int) for one in lengths[:_ELEMENTS]):
        return np.asarray(lengths[:_ELEMENTS], np.int64)
    array = _integers(lengths)
    return None if array is None else array.reshape(-1).astype(np.int64)


def _rows(labels: Array, lengths: Array) -> list[Array] | None:
    """Returns the labels of each row; None if lengths and labels do not go together."""
    if (lengths < 0).any():
        return None
    if labels.ndim == 2:
        fits = len(labels) == lengths.size and (lengths <= labels.shape[1]).all()
        return [row[:n] for row, n in zip(labels, lengths, strict=True)] if fits else None
    if labels.ndim != 1 or int(lengths.sum()) > labels.size:
        return None
    return np.split(labels[: int(lengths.sum())], np.cumsum(lengths)[:-1])
