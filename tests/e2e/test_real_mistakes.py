"""Mistakes that people made in real programs, each in a small one, and the same programs without them."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = [
    ("outside_the_loop", "StepSkipped", "drawn"),
    ("viewed_heads", "SampleMixing", "axes"),
    ("viewed_channels", "SampleMixing", "axes"),
    ("weighted_mean", "LossFormula", "weights_without_effect"),
    ("free_scale", "LossFormula", "scale_without_cost"),
    ("shared_norm", "RunningStatistics", "shared"),
    ("padded_targets", "NLPSequenceRatio", "padding"),
]


@pytest.mark.parametrize(("wrong", "rule", "cause"), WRONG)
def test_what_people_did_wrong_is_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.train("real_mistakes.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"] and not f["healed"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize("right", [f"no_{wrong}" for wrong, _, _ in WRONG])
def test_the_same_programs_as_they_should_be_are_silent(luff: Luff, right: str) -> None:
    assert luff.train("real_mistakes.py", arguments=(right,)).findings == []
