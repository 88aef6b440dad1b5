"""Does the finding that names a fault also name the edit that mends it?

The bench knows the edit: it is the difference between a faulty program and its repaired twin. EDITS holds it in words,
and phrases of which the finding's remedy must contain one, in lower case. Phrases name the edit ("lower the learning
rate"), not the trouble ("the loss diverges"). Judged is the first leading finding of a rule that the fault's label
expects, not before the fault's onset, in its newest form; where there is none, the remedy counts as wrong. A program
without an entry has none, and is left out of the sums.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["EDITS", "mark_remedies", "names_the_edit"]

EDITS: dict[str, tuple[str, tuple[str, ...]]] = {
    "pf01": ("ReLU in place of the sigmoids", ("relu",)),
    "pf02": ("recurrent weights at their usual size", ("smaller weights", "initialis")),
    "pf03": ("biases that begin at 0", ("bias",)),
    "pf04": ("weights that begin at their usual size", ("smaller weights",)),
    "pf05": ("weights that begin at random", ("at random",)),
    "pf06": ("an output layer that begins at its usual size", ("output layer", "initialisation made for")),
    "pf07": ("the rate divided by 100", ("lower the learning rate",)),
    "pf08": ("the rate multiplied by 100,000", ("raise the learning rate",)),
    "pf09": ("the stable form of the loss", ("stable form", "away from zero", "log_softmax")),
    "pf10": ("zero_grad() before each backward pass", ("zero_grad()",)),
    "pf11": ("all parameters for the optimizer", ("model.parameters()",)),
    "pf12": ("the optimizer made for the model that is trained", ("final form",)),
    "pf13": ("a weight decay of 1e-4", ("lower the weight decay",)),
    "pf14": ("the scheduler stepped once per epoch", ("once per epoch",)),
    "pf15": ("no detach() between encoder and head", ("detach()",)),
    "pf16": ("no softmax in the model", ("remove the softmax",)),
    "pf17": ("log-probabilities into the loss", ("log_softmax", "cross entropy")),
    "pf18": ("one shape for prediction and target", ("squeeze", "one shape")),
    "pf19": ("standardised features", ("standardise",)),
    "pf20": ("labels in the order of their inputs", ("belong together",)),
    "pf21": ("a loss weighted by class", ("weight the loss",)),
    "pf22": ("more data, and a lower rate", ("more data",)),
    "pf23": ("shuffled batches", ("shuffle",)),
    "pf24": ("model.train() after the evaluation", ("model.train()",)),
    "pf25": ("model.eval() before the evaluation", ("model.eval()",)),
    "pf26": ("a loss scale that adapts", ("loss scale adapt",)),
    "pf27": ("averaged gradients", ("average gradients",)),
    "pf28": ("no corrupt batch", ("batch of that step",)),
    "pf29": ("the right vocabulary", ("tokenizer",)),
    "pf30": ("one LoRA factor that begins at random", ("at random",)),
    "pf31": ("batch_first=True", ("batch_first",)),
    "pf32": ("a dropout of 0.03", ("p = 0.03",)),
    "pf33": ("standardised validation data", ("same steps",)),
    "pf34": ("biases that begin at 0", ("bias",)),
    "pf35": ("a shard of its own for each rank", ("shard", "sampler")),
    "pf36": ("a warm-up that ends", ("cap the warm-up", "end the warm-up")),
    "pf37": ("the softmax over the classes", ("dim=",)),
    "pf38": ("names that fit the file's", ("load", "names")),
    "px01": ("shallow, regularised trees", ("max_depth",)),
    "px02": ("the feature left out or outweighed", ("known at the time of the prediction",)),
    "px03": ("an eta of 0.1", ("raise eta",)),
}


def names_the_edit(program: str, remedy: str) -> bool:
    """Returns whether a remedy names the edit that mends a program."""
    return any(phrase in remedy.lower() for phrase in EDITS[program][1])


def mark_remedies(results: dict[str, Any], folders: Path) -> None:
    """Adds to the scorer's results, for each faulty training, whether the remedy is right, and the sums.

    Parameters
    ----------
    results
        The scorer's JSON.
    folders
        Holds a folder ``PROGRAM-SEED`` for each training, with alerts.jsonl.
    """
    faults = [row for row in results["faults"] if row["id"] in EDITS]
    for row in faults:
        alerts = map(
            json.loads, (folders / f"{row['id']}-{row['seed']}" / "alerts.jsonl").read_text().splitlines()
        )
        own = [alert for alert in alerts if row["rule"] and alert["rule"] == row["rule"]]
        named = min(own, key=lambda alert: (alert["step"] < row["step"], alert["step"])) if own else None
        row["remedy"] = named["remedy"] if named else ""
        row["remedy_right"] = named is not None and names_the_edit(row["id"], named["remedy"])
    summary = results["summary"]
    for part, rows in [
        (summary["faults"], faults),
        *((summary["groups"][name], [r for r in faults if r["group"] == name]) for name in summary["groups"]),
    ]:
        part["remedy_right"] = sum(r["remedy_right"] for r in rows) / len(rows) if rows else None
