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
    job = luff.train("places.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize("wrong", ["nothing", "nothing_of_two"])
def test_the_same_loops_as_they_should_be_are_silent(luff: Luff, wrong: str) -> None:
    assert luff.train("places.py", arguments=(wrong,)).findings == []


@pytest.mark.parametrize(
    ("wrong", "rule", "cause"),
    [
        ("accuracy_to_fall", "ScheduleCollapse", "plateau_mode"),
        ("last_of_both", "NoGradient", "backward_unused"),
        ("same_reference", "LossNotDecreasing", "constant"),
        ("other_optimizer", "NoGradient", "no_gradient"),
        ("other_noise", "LabelNoise", "other_noise"),
    ],
)
def test_something_in_the_place_of_what_is_meant_is_named(
    luff: Luff, wrong: str, rule: str, cause: str
) -> None:
    job = luff.train("wrong_objects.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize(
    "right", ["no_accuracy_to_fall", "no_last_of_both", "no_same_reference", "no_other_noise"]
)
def test_the_same_with_what_is_meant_is_silent(luff: Luff, right: str) -> None:
    assert luff.train("wrong_objects.py", arguments=(right,)).findings == []


@pytest.mark.parametrize(
    ("wrong", "rule", "cause"),
    [
        ("average_of_itself", "UnchangedTensor", "evaluated"),
        ("best_not_copied", "FrozenAtInit", "loads_itself"),
        ("states_reshaped", "SampleMixing", "reshape"),
        ("decoder_gets_answer", "CausalLeak", "not_shifted"),
        ("sorted_windows", "BatchOrder", "sorted"),
    ],
)
def test_what_is_the_same_and_what_is_mixed_is_named(luff: Luff, wrong: str, rule: str, cause: str) -> None:
    job = luff.train("same_or_mixed.py", arguments=(wrong,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert leaders == {(rule, cause)}


@pytest.mark.parametrize(
    "right",
    ["no_average_of_itself", "no_best_not_copied", "no_states_reshaped", "no_decoder_gets_answer"]
    + ["no_sorted_windows"],
)
def test_the_same_without_these_mistakes_is_silent(luff: Luff, right: str) -> None:
    assert luff.train("same_or_mixed.py", arguments=(right,)).findings == []


@pytest.mark.parametrize(
    "what",
    [
        "zero_head",
        "late_head",
        "pool",
        "solver",
        "relevances",
        "labels_of_its_own",
        "coarse_head",
        "baseline_beside",
    ],
)
def test_healthy_trainings_that_look_like_a_fault_are_silent(luff: Luff, what: str) -> None:
    assert luff.train("look_alikes.py", arguments=(what,)).findings == []
