"""Feature importance, updated tree by tree, so a round's cost does not grow with the number of earlier rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TYPES", "Importance"]

#: Types of importance, named as in XGBoost.
TYPES = ("weight", "gain", "cover", "total_gain", "total_cover")


class Importance:
    """Sums over all splits so far, by feature."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, 0))  # rows: splits, gain, cover

    def add(self, feature: NDArray[Any], gain: NDArray[Any], cover: NDArray[Any]) -> None:
        """Adds nodes of trees; leaves have feature -1."""
        inner = feature >= 0
        feature, gain, cover = feature[inner], gain[inner], cover[inner]
        if not len(feature):
            return
        size = int(feature.max()) + 1
        if size > self._sums.shape[1]:
            grown = np.zeros((3, size))
            grown[:, : self._sums.shape[1]] = self._sums
            self._sums = grown
        width = self._sums.shape[1]
        self._sums[0] += np.bincount(feature, minlength=width)
        self._sums[1] += np.bincount(feature, weights=gain, minlength=width)
        self._sums[2] += np.bincount(feature, weights=cover, minlength=width)

    def used(self) -> NDArray[Any]:
        """Returns the features that at least one tree splits on."""
        return np.flatnonzero(self._sums[0])

    def shares(self, used: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Returns the share of each used feature for each type; the shares of a type add up to 1."""
        splits, gain, cover = self._sums[:, used]
        scores = {
            "weight": splits,
            "gain": gain / splits,
            "cover": cover / splits,
            "total_gain": gain,
            "total_cover": cover,
        }
        return {name: _normalised(scores[name]) for name in TYPES}


def _normalised(scores: NDArray[Any]) -> NDArray[Any]:
    total = scores.sum()
    return scores / total if total != 0 else scores
