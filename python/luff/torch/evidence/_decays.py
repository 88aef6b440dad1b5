"""What an optimizer does to weights whose gradient is exactly zero: all it can do is to let them decay.

A decay is a share of the weight. One that takes the same number off each of them, whatever they are, has left the
weight out; one that makes them grow has the wrong sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["moved_alike"]

_LEAST = 16  # weights that have no gradient and move alike
_OF_EACH_SIGN = 4
_EXACT = 1e-3  # of the move, beside rounding
_CLEAR = 8  # times the rounding of a weight, that the move must have
_LAST_PLACE = 2.0**-23  # of a float32, relative
_OPPOSITE = 1 / 32  # of those that move alike: as many may move as far the other way


def moved_alike(before: NDArray[Any], after: NDArray[Any]) -> dict[str, float]:
    """Compares float32 weights without a gradient before and after an update.

    Returns
    -------
    dict
        ``shift``: at least half of them have moved by this number, those above and those below zero; or ``growth``: by
        this share of themselves, away from zero. Empty where neither is so, or where weights move as far the other way,
        as by the sign of a momentum.
    """
    if before.size < _LEAST:
        return {}
    old = before.astype(np.float64)
    change = after.astype(np.float64) - old
    rounding = _LAST_PLACE * np.maximum(np.abs(before), np.abs(after)).astype(np.float64)
    shift = float(np.median(change))
    alike = (np.abs(change - shift) <= 2 * rounding + _EXACT * abs(shift)) & (abs(shift) > _CLEAR * rounding)
    if _enough(alike, old):
        opposite = np.abs(change + shift) <= 2 * rounding + _EXACT * abs(shift)
        many = np.count_nonzero(opposite) > _OPPOSITE * np.count_nonzero(alike)
        return {} if many else {"shift": shift}
    whole = old != 0
    old, change, rounding = old[whole], change[whole], rounding[whole]
    if old.size < _LEAST:
        return {}
    growth = float(np.median(change / old))
    alike = np.abs(change - growth * old) <= 2 * rounding + _EXACT * abs(growth) * np.abs(old)
    alike &= growth * np.abs(old) > _CLEAR * rounding
    return {"growth": growth} if _enough(alike, old) else {}


def _enough(alike: NDArray[Any], old: NDArray[Any]) -> bool:
    above, below = int(np.count_nonzero(alike & (old > 0))), int(np.count_nonzero(alike & (old < 0)))
    many = above + below >= max(_LEAST, old.size / 2)
    return many and min(above, below) >= _OF_EACH_SIGN
