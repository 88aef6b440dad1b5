"""Data and losses that disagree, as users write them, and the same programs without the mistake."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = [
    ("hidden_time", "LabelNoise", "time_missing"),
    ("overlap_added", "LossFormula", "overlap_minimised"),
    ("similarity_added", "LossFormula", "similarity_minimised"),
    ("padding_counted", "NLPSequenceRatio", "padding"),
    ("padding_read", "SampleMixing", "padding"),
    ("shifted_twice", "CausalLeak", "shifted_twice"),
    ("one_column", "DeadEmbeddingRows", "other_column"),
]


@pytest.mark.parametrize(("wrong", "rule", "cause"), WRONG)
def test_what_data_and_loss_disagree_about_is_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.train("data_and_losses.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize("right", [f"no_{wrong}" for wrong, _, _ in WRONG])
def test_the_same_programs_as_they_should_be_are_silent(luff: Luff, right: str) -> None:
    assert luff.train("data_and_losses.py", arguments=(right,)).findings == []
