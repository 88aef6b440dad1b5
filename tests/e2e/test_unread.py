"""What a program sets and nobody reads, as users write it, and the same programs without the mistake."""

from __future__ import annotations

import pytest

from .conftest import Luff

FAULTS = {
    "other_optimizer": ("ScheduleCollapse", "other_optimizer"),
    "milestones": ("ScheduleCollapse", "milestones"),
    "rate_of_group": ("OptimizerSettings", "unread"),
    "rate_and_momentum": ("OptimizerSettings", "exchanged"),
    "flag_of_module": ("FrozenAtInit", "freeze_without_effect"),
    "flag_of_parameter": ("FrozenAtInit", "freeze_without_effect"),
    "used_up": ("ClipSaturated", "nothing"),
    "slow_average": ("UnchangedTensor", "slow_average"),
    "early_copy": ("UnchangedTensor", "evaluated"),
    "made_in_forward": ("ParamNotOptimized", "made_in_forward"),
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_each_is_named(luff: Luff, wrong: str) -> None:
    job = luff.train("unread.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert FAULTS[wrong] in leaders


@pytest.mark.parametrize("right", [f"no_{wrong}" for wrong in FAULTS])
def test_the_same_without_it_is_silent(luff: Luff, right: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("unread.py", arguments=(right,)).findings}
    assert not told & set(FAULTS.values())
