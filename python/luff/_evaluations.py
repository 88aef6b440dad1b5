"""Evaluations: a loss has one value for each, its mean over the evaluation's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["means_of_evaluations"]


def means_of_evaluations(scalars: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns the scalars of EVAL steps with one row for each evaluation: the mean, at its last step.

    An evaluation is the EVAL steps between two updates.
    """
    update = scalars["update"]
    if not update.size:
        return scalars
    first = np.flatnonzero(np.r_[True, update[1:] != update[:-1]])
    end = np.r_[first[1:], update.size]
    means = {name: column[end - 1] for name, column in scalars.items()}
    return means | {"value": np.add.reduceat(scalars["value"], first) / (end - first)}
