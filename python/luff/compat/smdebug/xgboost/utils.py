"""Reads properties of a booster."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost

from luff.xgboost._describe import feature_names
from luff.xgboost._trees import read_rounds

__all__ = ["is_xgb_1_5_and_later", "parse_tree_model", "rank_and_size"]


def is_xgb_1_5_and_later() -> bool:
    """Returns whether trees have a column for categories."""
    return tuple(int(part) for part in xgboost.__version__.split(".")[:2]) >= (1, 5)


def rank_and_size() -> tuple[int, int]:
    """Returns the rank of this process and the number of processes."""
    try:
        from xgboost import collective

        if collective.is_distributed():
            return int(collective.get_rank()), int(collective.get_world_size())
    except (ImportError, AttributeError):  # built without it
        pass
    return 0, 1


def parse_tree_model(booster: Any, iteration: int, fmap: str = "") -> dict[str, np.ndarray[Any, Any]]:  # noqa: ARG001
    """Returns the trees of one round as the columns of `Booster.trees_to_dataframe`; absent entries are NaN or
    ``"nan"``.
    """
    found = read_rounds(booster, iteration, iteration + 1)
    columns = found.columns
    first = iteration * max(1, found.trees[0])
    tree = columns["Tree"] + first
    names = feature_names(booster)

    def label(index: int) -> str:
        return "Leaf" if index < 0 else names[index] if index < len(names) else f"f{index}"

    def ids(nodes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array(
            ["nan" if n < 0 else f"{t}-{n}" for t, n in zip(tree.tolist(), nodes.tolist(), strict=True)]
        )

    out = {
        "Tree": tree,
        "Node": columns["Node"],
        "ID": ids(columns["Node"]),
        "Feature": np.array([label(index) for index in columns["Feature"].tolist()]),
        "Split": columns["Split"],
        "Yes": ids(columns["Yes"]),
        "No": ids(columns["No"]),
        "Missing": ids(columns["Missing"]),
        "Gain": columns["Gain"],
        "Cover": columns["Cover"],
    }
    if is_xgb_1_5_and_later():
        texts = ["nan"] * len(tree)
        for row, categories in found.categories.items():
            texts[row] = str(categories.tolist())
        out["Category"] = np.array(texts)
    return out
