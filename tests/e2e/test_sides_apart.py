"""What training or evaluations do to their rows and the others do not, and what both do wrongly."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = [
    ("evaluation_cut", "TrainValSkew", "cut"),
    ("training_cut", "TrainValSkew", "cut"),  # and InputScale says so
    ("both_cut", "InputScale", "cut_to_integers"),
    ("evaluation_by_row", "TrainValSkew", "by_row"),
    ("both_by_row", "InputScale", "by_row"),
    ("targets_cut", "TrainValSkew", "targets_cut"),
    ("codes", "InputScale", "missing_code"),
    ("weights_by_frequency", "ClassImbalance", "weights_of_other_classes"),
]
DATA = {"TrainValSkew", "InputScale", "ClassImbalance"}


@pytest.mark.parametrize(("wrong", "rule", "cause"), WRONG)
def test_rows_that_one_side_changes_are_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.train("sides_apart.py", arguments=(wrong,))
    found = {(f["rule"], f["cause"]) for f in job.findings if f["rule"] in DATA}
    also = {("InputScale", "cut_to_integers")} if wrong == "training_cut" else set()
    assert found == {(rule, cause), *also}


@pytest.mark.parametrize(
    "right", ["no_noise_on_whole_numbers", "no_rows_with_noise", "no_rounded_targets", "no_other_weights"]
)
def test_rows_that_are_alike_on_both_sides_are_silent(luff: Luff, right: str) -> None:
    assert not luff.train("sides_apart.py", arguments=(right,)).rules() & DATA
