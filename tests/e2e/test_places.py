"""Calls and variables at the wrong place of a loop, as users put them, and the same loops without the mistake."""

from __future__ import annotations

import pytest

from .conftest import Luff


@pytest.mark.parametrize(
    ("wrong", "rule", "cause"),
    [
        ("last_batch", "StepSkipped", "unused"),
        ("clipped_late", "ClipSaturated", "misplaced"),
        ("never_steps", "StepSkipped", "never"),
    ],
)
def test_a_call_at_the_wrong_place_is_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.run("places.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize("wrong", ["nothing", "nothing_of_two"])
def test_the_same_loops_as_they_should_be_are_silent(luff: Luff, wrong: str) -> None:
    assert luff.run("places.py", arguments=(wrong,)).findings == []
