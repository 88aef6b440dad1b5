"""Trees of a LightGBM booster as columns. Only the requested rounds are written out and parsed.

Nodes of a tree have the numbers of LightGBM's splits; the leaves follow.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luff._boosting._trees import COLUMNS, Rounds, depths

__all__ = ["TREE_COLUMNS", "read_rounds"]

#: Cover is the number of rows, Weight is the sum of their hessians.
TREE_COLUMNS = (*COLUMNS, "Weight")

_LINES = {
    name: re.compile(f"^{name}=(.*)$", re.MULTILINE)
    for name in (
        "num_leaves", "num_cat", "split_feature", "split_gain", "threshold", "decision_type", "left_child",
        "right_child", "leaf_value", "leaf_weight", "leaf_count", "internal_weight", "internal_count",
        "cat_boundaries", "cat_threshold",
    )
}  # fmt: skip
_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of decision_type


def read_rounds(booster: Any, begin: int, end: int) -> Rounds:
    """Reads the rounds from `begin` to `end` (exclusive).

    Raises
    ------
    ValueError
        If the model text has another form.
    """
    text = booster.model_to_string(num_iteration=end - begin, start_iteration=begin)
    first, last = text.find("\nTree="), text.find("\nend of trees")
    if last < 0:
        raise ValueError("a model without an end of its trees")
    trees = _Trees(text[first:last] if 0 <= first < last else "")
    per_round = int(booster.num_model_per_iteration())
    if len(trees.leaves) != per_round * (end - begin):
        raise ValueError(f"{len(trees.leaves)} trees in {end - begin} rounds of {per_round}")
    return _as_columns(trees, [per_round] * (end - begin))


class _Trees:
    """Lines of all trees; those of one key are read as one array."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.leaves = np.array([int(n) for n in self.lines("num_leaves")], dtype=np.int64)

    def lines(self, key: str) -> list[str]:
        """Returns the text after a key, for each tree that has it."""
        found: list[str] = _LINES[key].findall(self._text)
        return found

    def numbers(self, key: str, dtype: Any, count: int) -> NDArray[Any]:
        """Returns the numbers of all trees; a blank value of a tree with a single leaf becomes zero."""
        lines = self.lines(key)
        if key.startswith("leaf_"):
            lines = [line if line.strip() else "0" for line in lines]
        joined = " ".join(lines)
        found: NDArray[Any] = np.empty(0, dtype)
        if joined.strip():
            found = np.fromstring(joined, dtype=dtype, sep=" ")
        if len(found) != count:
            raise ValueError(f"{len(found)} numbers of {key}, {count} expected")
        return found


def _within(sizes: NDArray[Any]) -> NDArray[Any]:
    """Returns 0, 1, … for each tree."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    within: NDArray[Any] = np.arange(total) - np.repeat(ends - sizes, sizes)
    return within


def _as_columns(trees: _Trees, per_round: list[int]) -> Rounds:
    leaves = trees.leaves
    splits = leaves - 1
    sizes = splits + leaves
    starts = np.concatenate(([0], np.cumsum(sizes)))
    count, split_count, leaf_count = int(starts[-1]), int(splits.sum()), int(leaves.sum())
    split_rows = np.repeat(starts[:-1], splits) + _within(splits)
    leaf_rows = np.repeat(starts[:-1] + splits, leaves) + _within(leaves)
    offset = np.repeat(splits, splits)  # number of a tree's first leaf

    def of_nodes(splits_key: str, leaves_key: str, dtype: Any) -> NDArray[Any]:
        column = np.empty(count, dtype)
        column[split_rows] = trees.numbers(splits_key, dtype, split_count)
        column[leaf_rows] = trees.numbers(leaves_key, dtype, leaf_count)
        return column

    def of_splits(values: Any, rest: Any, dtype: Any) -> NDArray[Any]:
        column = np.full(count, rest, dtype)
        column[split_rows] = values
        return column

    def children(key: str) -> NDArray[Any]:
        found = trees.numbers(key, np.int64, split_count)
        return np.where(found >= 0, found, offset + ~found)

    decision = trees.numbers("decision_type", np.int64, split_count)
    left, right = children("left_child"), children("right_child")
    threshold = trees.numbers("threshold", np.float64, split_count)
    categorical = (decision & _CATEGORICAL) != 0
    yes, no = of_splits(left, -1, np.int64), of_splits(right, -1, np.int64)
    inner = np.zeros(count, dtype=bool)
    inner[split_rows] = True
    first = np.repeat(starts[:-1], sizes)
    columns = {
        "Tree": np.repeat(np.arange(len(leaves)), sizes),
        "Node": np.arange(count) - first,
        "Feature": of_splits(trees.numbers("split_feature", np.int64, split_count), -1, np.int64),
        "Split": of_splits(np.where(categorical, np.nan, threshold), np.nan, np.float64),
        "Yes": yes,
        "No": no,
        "Missing": of_splits(np.where(decision & _DEFAULT_LEFT, left, right), -1, np.int64),
        "Gain": of_nodes("split_gain", "leaf_value", np.float64),
        "Cover": of_nodes("internal_count", "leaf_count", np.float64),
        "Depth": depths(yes + first, no + first, inner, starts[:-1]),
        "Weight": of_nodes("internal_weight", "leaf_weight", np.float64),
    }
    ends = [int(row) for row in starts[np.cumsum(per_round)]]
    rounds = Rounds(columns, ends, per_round)
    if categorical.any():
        of_tree = columns["Tree"][split_rows[categorical]]
        sets = threshold[categorical].astype(np.int64)
        rounds.categories = _categories(trees, split_rows[categorical], of_tree, sets)
    return rounds


def _categories(
    trees: _Trees, rows: NDArray[Any], of_tree: NDArray[Any], sets: NDArray[Any]
) -> dict[int, NDArray[Any]]:
    """Maps the row of a split by categories to the categories that go left."""
    holders = [tree for tree, n in enumerate(trees.lines("num_cat")) if int(n) > 0]
    words = {
        tree: (np.fromstring(bounds, np.int64, sep=" "), np.fromstring(bits, np.uint32, sep=" "))
        for tree, bounds, bits in zip(
            holders, trees.lines("cat_boundaries"), trees.lines("cat_threshold"), strict=True
        )
    }
    found: dict[int, NDArray[Any]] = {}
    for row, tree, one in zip(rows.tolist(), of_tree.tolist(), sets.tolist(), strict=True):
        bounds, bits = words[tree]
        mask = bits[bounds[one] : bounds[one + 1]].astype("<u4")
        found[row] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return found
