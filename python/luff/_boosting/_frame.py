"""Trees of a trial as the columns of `Booster.trees_to_dataframe`."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.trial import Trial

__all__ = ["trees"]


def trees(trial: Trial, step: int, *, prefix: str = "") -> dict[str, list[Any]]:
    """Returns the trees of one boosting round.

    Parameters
    ----------
    trial
        A run that recorded the collection ``trees``.
    step
        Boosting round: the number of a TRAIN step of the run, counted from 0.
    prefix
        Prefix of a later training of the same process, e.g. ``"fit2/"``.

    Returns
    -------
    dict
        Columns of equal length: Tree, Node, ID, Feature (a name, or ``"Leaf"``), Split, Yes, No, Missing (IDs),
        Gain (for a leaf: its value), Cover, Category (a list of categories). None marks an absent entry.
        ``pandas.DataFrame`` accepts it.

    Raises
    ------
    NotFoundError, OutOfRangeError
        If the run has no trees, or none at this step.
    """
    value = {
        name: trial.tensor(f"{prefix}trees/{name}").value(step, mode="TRAIN")
        for name in ("Tree", "Node", "Feature", "Split", "Yes", "No", "Missing", "Gain", "Cover")
    }
    document = trial.document("boosting") or {}
    names: list[str] = []
    for training in document.get("trainings", []):
        if training.get("prefix") == prefix:
            names = training.get("features", [])
    tree = value["Tree"].tolist()

    def label(index: int) -> str:
        return "Leaf" if index < 0 else names[index] if index < len(names) else f"f{index}"

    def ids(nodes: Any) -> list[str | None]:
        return [None if n < 0 else f"{t}-{n}" for t, n in zip(tree, nodes.tolist(), strict=True)]

    categories: list[list[int] | None] = [None] * len(tree)
    name = f"{prefix}trees/Category"
    if trial.has_tensor(name) and step in trial.tensor(name).value_steps("TRAIN"):
        for row, category in trial.tensor(name).value(step, mode="TRAIN").tolist():
            categories[row] = [*(categories[row] or []), category]
    return {
        "Tree": tree,
        "Node": value["Node"].tolist(),
        "ID": ids(value["Node"]),
        "Feature": [label(index) for index in value["Feature"].tolist()],
        "Split": [None if np.isnan(x) else x for x in value["Split"].tolist()],
        "Yes": ids(value["Yes"]),
        "No": ids(value["No"]),
        "Missing": ids(value["Missing"]),
        "Gain": value["Gain"].tolist(),
        "Cover": value["Cover"].tolist(),
        "Category": categories,
    }
