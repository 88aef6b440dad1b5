"""Training and held-out data that do not fit together, as users prepare them, and programs without the mistake."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = [
    ("labels_in_part", "LabelNoise", "part_of_other_rows"),
    ("windows_at_random", "DataLeak", "windows"),
    ("columns_moved", "TrainValSkew", "moved"),
    ("ids_recoded", "TrainValSkew", "recoded"),
]
DATA = {
    "LabelNoise",
    "DataLeak",
    "TrainValSkew",
    "Confusion",
    "InputScale",
    "Overfit",
    "BatchOrder",
    "TargetRange",
}


@pytest.mark.parametrize(("wrong", "rule", "cause"), WRONG)
def test_sets_that_do_not_fit_together_are_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.train("two_sets.py", arguments=(wrong,))
    found = [(f["rule"], f["cause"]) for f in job.findings if not f["leader"] and f["rule"] in DATA]
    assert found[:1] == [(rule, cause)]


# The others have their look-alikes in src/rules/builtin/data/train_val_skew_places_test.cc.
@pytest.mark.parametrize("right", ["no_labels_in_part", "no_windows_at_random"])
def test_sets_that_fit_together_are_silent(luff: Luff, right: str) -> None:
    assert not luff.train("two_sets.py", arguments=(right,)).rules() & DATA
