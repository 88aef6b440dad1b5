"""What a loop undoes or leaves out, and what looks like it."""

from __future__ import annotations

import pytest

from .conftest import Luff

SET_BACK, EARLY = ("FrozenAtInit", "set_back"), ("StepSkipped", "ends_early")
FEW = ("Overfit", "few_rows")
FAULTS = {
    "loads_the_first_state": SET_BACK,
    "loads_a_file": SET_BACK,
    "resets_parameters": SET_BACK,
    "applies_an_initialisation": SET_BACK,
    "draws_by_data": SET_BACK,
    "seeds_and_draws": SET_BACK,
    "noisy_rows": SET_BACK,
    "breaks": EARLY,
    "breaks_with_a_loader": EARLY,
    "returns_inside": EARLY,
    "breaks_in_order": EARLY,
    "few_rows_left": FEW,
    "subset_left": FEW,
}
MEANT = (
    "reptile",
    "adapts_to_each_task",
    "restarts",
    "rewinds",
    "clients",
    "folds",
    "averages_are_swapped",
    "clips_weights",
    "probes",
    "back_to_the_best",
    "finds_a_rate",
    "one_fold",
    "goes_on_with_an_iterator",
    "learns_one_batch",
    "learns_one_batch_and_looks_once",
    "a_helper_draws_a_batch",
    "ends_on_a_condition",
    "looks_at_one_batch_first",
    "draws_a_batch",
    "full_batches",
    "few_shots",
)


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_named(luff: Luff, name: str) -> None:
    job = luff.train("undone.py", arguments=(name,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"] and not f["healed"]}
    assert FAULTS[name] in leaders


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_is_none_of_them(luff: Luff, name: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("undone.py", arguments=(name,)).findings}
    assert not told & set(FAULTS.values())


def test_folds_with_one_optimizer_leak_nothing(luff: Luff) -> None:
    told = {f["rule"] for f in luff.run("undone.py", arguments=("folds_with_one_optimizer",)).findings}
    assert "DataLeak" not in told
