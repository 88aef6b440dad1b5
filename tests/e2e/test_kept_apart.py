"""Mistakes that were found with edits that had been kept apart, and what looks like them."""

from __future__ import annotations

import pytest

from .conftest import Luff

FAULTS = {
    "cleared": ("AccumulationScale", "cleared"),
    "own_answers": ("LabelNoise", "own_answers"),
    "zeros": ("SymmetricUnits", "zeros"),
    "dice_of_scores": ("LossFormula", "overlap_of_scores"),
    "both_maximised": ("LossNotDecreasing", "maximised"),
    "far_too_high": ("WeightUpdateRatio", "replaced"),
    "eps_of_one": ("WeightUpdateRatio", "damped"),
}
MEANT = ("attacked", "gathered", "added", "labels", "head_of_zeros", "dice", "adversaries", "two_networks")


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_named(luff: Luff, name: str) -> None:
    job = luff.train("kept_apart.py", arguments=(name,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert FAULTS[name] in leaders


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_is_none_of_them(luff: Luff, name: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("kept_apart.py", arguments=(name,)).findings}
    assert not told & set(FAULTS.values())
