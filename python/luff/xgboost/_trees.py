"""Trees of a booster as columns. Only the requested rounds are read, regardless of the size of the model.

A slice of the booster is written as binary JSON and its arrays are used as they are: no text is made or parsed, and
all trees of the rounds are processed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from luff._boosting._trees import Rounds, depths
from luff.xgboost._ubjson import parse

__all__ = ["read_rounds"]


def read_rounds(booster: Any, begin: int, end: int) -> Rounds:
    """Reads the rounds from `begin` to `end` (exclusive) of a booster of trees.

    Raises
    ------
    ValueError
        If the model's trees have another form: vectors in the leaves.
    """
    part = booster[begin:end]
    model = parse(part.save_raw(raw_format="ubj"))
    learner = model["learner"]["gradient_booster"]
    held = learner.get("gbtree", learner)["model"]  # dart contains a booster of trees
    trees = held["trees"]
    per_round = np.diff(np.asarray(held.get("iteration_indptr", ()), dtype=np.int64))
    if len(per_round) != end - begin or int(per_round.sum()) != len(trees):
        if len(trees) % (end - begin):
            raise ValueError(f"{len(trees)} trees in {end - begin} rounds")
        per_round = np.full(end - begin, len(trees) // (end - begin))
    return _as_columns(trees, [int(n) for n in per_round])


def _joined(trees: list[Any], key: str, dtype: Any) -> NDArray[Any]:
    parts = [np.asarray(tree[key]) for tree in trees]
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _as_columns(trees: list[Any], per_round: list[int]) -> Rounds:
    sizes = np.array([len(tree["left_children"]) for tree in trees], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    left = _joined(trees, "left_children", np.int64)
    right = _joined(trees, "right_children", np.int64)
    count = len(left)
    cover = _joined(trees, "sum_hessian", np.float32)
    gain = _joined(trees, "loss_changes", np.float32)
    split = _joined(trees, "split_conditions", np.float32)
    if not len(cover) == len(gain) == len(split) == count:
        raise ValueError("trees with vectors in their leaves")
    tree_of = np.repeat(np.arange(len(trees)), sizes)
    first = np.repeat(starts[:-1], sizes)
    node = np.arange(count) - first
    inner = left >= 0
    depth = depths(left + first, right + first, inner, starts[:-1])

    leaf = ~inner
    feature = _joined(trees, "split_indices", np.int64)
    default_left = _joined(trees, "default_left", np.int64) != 0
    yes, no = np.where(inner, left, -1), np.where(inner, right, -1)
    missing = np.where(inner, np.where(default_left, left, right), -1)
    by_category = inner & (_joined(trees, "split_type", np.int64) != 0)
    value = split.copy()
    split = np.where(inner & ~by_category, split, np.float32(np.nan))
    if by_category.any():  # categories in the set go to the right
        yes, no = np.where(by_category, right, yes), np.where(by_category, left, no)
    kept = np.flatnonzero(depth >= 0)  # nodes removed by pruning are still in the arrays
    columns = {
        "Tree": tree_of[kept],
        "Node": node[kept],
        "Feature": np.where(leaf, -1, feature)[kept],
        "Split": split[kept],
        "Yes": yes[kept],
        "No": no[kept],
        "Missing": missing[kept],
        "Gain": np.where(leaf, value, gain)[kept],
        "Cover": cover[kept],
        "Depth": depth[kept],
    }
    last_trees = np.cumsum(per_round)
    ends = [int(row) for row in np.searchsorted(kept, starts[last_trees])]
    rounds = Rounds(columns, ends, per_round)
    if by_category.any():
        rounds.categories = _categories(trees, starts, kept)
    return rounds


def _categories(trees: list[Any], starts: NDArray[Any], kept: NDArray[Any]) -> dict[int, NDArray[Any]]:
    found: dict[int, NDArray[Any]] = {}
    for number, tree in enumerate(trees):
        values = np.asarray(tree["categories"])
        for node, begin, size in zip(
            tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
        ):
            row = int(np.searchsorted(kept, starts[number] + node))
            if row < len(kept) and kept[row] == starts[number] + node:
                found[row] = values[int(begin) : int(begin) + int(size)]
    return found
