"""Trees of some boosting rounds as columns, whatever library has grown them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "Rounds", "depths"]

#: Columns of a round, as they are recorded: ``trees/NAME``.
COLUMNS = ("Tree", "Node", "Feature", "Split", "Yes", "No", "Missing", "Gain", "Cover", "Depth")


@dataclass
class Rounds:
    """Trees of some boosting rounds: one row for each node, sorted by tree and node.

    Attributes
    ----------
    columns
        Tree (number among these trees), Node, Feature (index; -1: a leaf), Split (NaN for leaves and categories),
        Yes, No, Missing (nodes of the same tree; -1: none), Gain (of a leaf its value), Cover, Depth.
    ends
        For each round the row after its last one.
    trees
        For each round the number of its trees.
    categories
        Row of a split by categories: what goes to its "Yes".
    """

    columns: dict[str, NDArray[Any]]
    ends: list[int]
    trees: list[int]
    categories: dict[int, NDArray[Any]] = field(default_factory=dict)


def depths(left: NDArray[Any], right: NDArray[Any], inner: NDArray[Any], roots: NDArray[Any]) -> NDArray[Any]:
    """Levels below the root; -1 for what no root leads to.

    Parameters
    ----------
    left, right
        Rows of the children, read where `inner` is set.
    roots
        Rows of the roots.

    Raises
    ------
    ValueError
        For children that lead out of the rows, or in a circle.
    """
    depth = np.full(len(left), -1, dtype=np.int64)
    level, at = 0, roots
    while len(at):
        depth[at] = level
        at = at[inner[at]]
        at = np.concatenate((left[at], right[at]))
        if len(at) and (at.max() >= len(depth) or at.min() < 0 or level > len(depth)):
            raise ValueError("a tree whose nodes lead nowhere")
        level += 1
    return depth
