"""Mistakes of updates, as users make them, and the same programs without them."""

from __future__ import annotations

import pytest

from .conftest import Luff

FAULTS = {
    "never_steps": ("StepSkipped", "none"),
    "last_batch": ("StepSkipped", "unused"),
    "all_pairs": ("LossShapeMismatch", "broadcast"),
    "by_hand": ("ExplodingTensor", "growth"),
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_each_is_named(luff: Luff, wrong: str) -> None:
    job = luff.train("updates.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert FAULTS[wrong] in leaders


@pytest.mark.parametrize("right", [f"no_{wrong}" for wrong in FAULTS])
def test_the_same_without_it_is_silent(luff: Luff, right: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("updates.py", arguments=(right,)).findings}
    assert not told & {*FAULTS.values()}
