"""Trees of some boosting rounds as columns, whichever library grew them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "Rounds", "depths"]

#: Columns of a round, recorded as ``trees/NAME``.
COLUMNS = ("Tree", "Node", "Feature", "Split", "Yes", "No", "Missing", "Gain", "Cover", "Depth")


@dataclass
class Rounds:
    """Trees of some boosting rounds: one row for each node, sorted by tree and node.

    Attributes
    ----------
    columns
        Tree (number among these trees), Node, Feature (index; -1: a leaf), Split (NaN for leaves and categories),
        Yes, No, Missing (nodes of the same tree; -1: none), Gain (for a leaf: its value), Cover, Depth.
    ends
        For each round, the row after its last one.
    trees
        For each round, the number of its trees.
    categories
        For each row that splits by categories, the categories that go to its "Yes".
    """

    columns: dict[str, NDArray[Any]]
    ends: list[int]
    trees: list[int]
    categories: dict[int, NDArray[Any]] = field(default_factory=dict)


def depths(left: NDArray[Any], right: NDArray[Any], inner: NDArray[Any], roots: NDArray[Any]) -> NDArray[Any]:
    """Returns the levels below the root; -1 for rows that no root leads to.

    Parameters
    ----------
    left, right
        Rows of the children, read where `inner` is set.
    roots
        Rows of the roots.

    Raises
    ------
    ValueError
        If a child lies outside of the rows, or the nodes form a cycle.
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
