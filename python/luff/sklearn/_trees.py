"""Trees of scikit-learn's boosting as columns; only those of the requested rounds are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from luff._boosting._trees import Rounds, depths

__all__ = ["read_rounds"]


def read_rounds(model: Any, begin: int, end: int) -> Rounds:
    """Reads the rounds from `begin` to `end` (exclusive) of an ensemble in training.

    Raises
    ------
    ValueError
        If rounds are missing.
    """
    if hasattr(model, "_predictors"):
        rounds = [[_histogram_tree(p) for p in one] for one in model._predictors[begin:end]]
    else:
        rounds = [[_tree(one.tree_) for one in stage] for stage in model.estimators_[begin:end]]
    if len(rounds) != end - begin or not all(rounds):
        raise ValueError(f"{len(rounds)} rounds of trees, {end - begin} expected")
    trees = [tree for one in rounds for tree in one]
    for number, tree in enumerate(trees):
        tree["Tree"] = np.full(len(tree["Node"]), number)
    columns = {name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]}
    ends = np.cumsum([sum(len(tree["Node"]) for tree in one) for one in rounds])
    return Rounds(columns, [int(row) for row in ends], [len(one) for one in rounds])


def _columns(
    left: Any, right: Any, feature: Any, split: Any, to_left: Any, gain: Any, value: Any, cover: Any
) -> dict[str, NDArray[Any]]:
    left, right = np.asarray(left).astype(np.int64), np.asarray(right).astype(np.int64)
    inner = left >= 0
    return {
        "Node": np.arange(len(left)),
        "Feature": np.where(inner, feature, -1).astype(np.int64),
        "Split": np.where(inner, split, np.nan).astype(np.float64),
        "Yes": np.where(inner, left, -1),
        "No": np.where(inner, right, -1),
        "Missing": np.where(inner, np.where(to_left, left, right), -1),
        "Gain": np.where(inner, gain, value).astype(np.float64),
        "Cover": np.asarray(cover).astype(np.float64),
        "Depth": depths(left, right, inner, np.zeros(1, dtype=np.int64)),
    }


def _tree(tree: Any) -> dict[str, NDArray[Any]]:
    left, right = tree.children_left, tree.children_right
    weight = tree.weighted_n_node_samples
    heavy = weight * tree.impurity
    gain = (heavy - heavy[left] - heavy[right]) / max(float(weight[0]), 1e-300)  # as in feature_importances_
    to_left = getattr(tree, "missing_go_to_left", np.zeros(len(left), dtype=bool))
    return _columns(
        left, right, tree.feature, tree.threshold, to_left, gain, tree.value[:, 0, 0], tree.n_node_samples
    )


def _histogram_tree(predictor: Any) -> dict[str, NDArray[Any]]:
    nodes = predictor.nodes
    leaf = nodes["is_leaf"] != 0
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    right = np.where(leaf, -1, nodes["right"].astype(np.int64))
    split = np.where(nodes["is_categorical"] != 0, np.nan, nodes["num_threshold"])
    to_left = nodes["missing_go_to_left"] != 0
    return _columns(
        left, right, nodes["feature_idx"], split, to_left, nodes["gain"], nodes["value"], nodes["count"]
    )
