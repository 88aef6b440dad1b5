"""Mistakes of rates, of an optimizer's settings and of the scale of weights, and programs that look like them."""

from __future__ import annotations

import pytest

from .conftest import Luff

FAULTS = {
    "noam_per_epoch": ("ScheduleCollapse", "warm_up_per_epoch"),
    "decay_per_epoch": ("ScheduleCollapse", "hardly_begun"),
    "cosine_of_epochs": ("ScheduleCollapse", "overrun"),
    "grows": ("ScheduleCollapse", "grows"),
    "zero_below": ("ScheduleCollapse", "zero_rate"),
    "maximises": ("LossNotDecreasing", "maximised"),
    "penalty": ("RegularizationDominates", "shrinkage"),
    "tiny": ("PoorWeightInitialization", "tiny"),
}
OTHERS = (
    "as_it_is",
    "noam_per_update",
    "epochs_of_warm_up",
    "all_of_the_warm_up",
    "falls",
    "there_and_back",
    "unlearn",
    "likelihood",
    "weak_penalty",
    "small_head",
    "measures_the_weights",
)


@pytest.mark.parametrize("wrong", FAULTS)
def test_each_is_named(luff: Luff, wrong: str) -> None:
    job = luff.train("rates_and_scales.py", arguments=(wrong,))
    assert FAULTS[wrong] in {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}


@pytest.mark.parametrize("right", OTHERS)
def test_what_looks_like_them_is_silent(luff: Luff, right: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("rates_and_scales.py", arguments=(right,)).findings}
    assert not told & {*FAULTS.values(), ("LossSpike", "spike"), ("WeightUpdateRatio", "small")}
