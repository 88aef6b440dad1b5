"""Mistakes of loops and of copies of a model, as users make them, and the same programs without them."""

from __future__ import annotations

import pytest

from .conftest import Luff

FAULTS = {
    "clipped_scaled": ("ClipSaturated", "scaled"),
    "cleared_between": ("AccumulationScale", "cleared"),
    "buffers_left_out": ("RunningStatistics", "left_behind"),
    "target_stands": ("UnchangedTensor", "target"),
    "worst_restored": ("FrozenAtInit", "restores_worst"),
    "moving_gain": ("LossFormula", "moving_gain"),
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_each_is_named(luff: Luff, wrong: str) -> None:
    job = luff.train("loops_and_copies.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert FAULTS[wrong] in leaders


@pytest.mark.parametrize("right", [*(f"no_{wrong}" for wrong in FAULTS), "teacher_at_chance"])
def test_the_same_without_it_is_silent(luff: Luff, right: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("loops_and_copies.py", arguments=(right,)).findings}
    assert not told & {*FAULTS.values(), ("NoBetterThanConstant", "no_better")}


@pytest.mark.parametrize("which", ["tasks", "full_weights", "federation"])
def test_several_copies_of_a_model_are_silent(luff: Luff, which: str) -> None:
    """Gradients that are handed over, losses that `torch.autograd.grad` uses, and learners that part for a while."""
    assert luff.train("several_copies.py", arguments=(which,)).findings == []


def test_an_optimizer_of_an_older_copy_is_named(luff: Luff) -> None:
    found = luff.train("several_copies.py", arguments=("older_copy",)).findings
    assert ("ParamNotOptimized", "not_in_optimizer", "stop") in {
        (f["rule"], f["cause"], f["severity"]) for f in found
    }
