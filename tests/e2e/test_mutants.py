"""Eight mutants of ordinary scripts (benchmarks/mutants): the fault is named first, with the edit that mends it.

Their original programs stay silent. Six are runs kept in testdata/mutants, judged by today's rules; two are trained.
All are of the half in sight.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import Luff

_ROOT = Path(__file__).parents[2]
_KEPT = _ROOT / "testdata" / "mutants"
sys.path.insert(0, str(_ROOT / "benchmarks"))

from mutants.halves import half, mutate  # noqa: E402
from mutants.kept import KEPT  # noqa: E402

#: Program and edit: the rule that leads, and words of its remedy.
_NAMED = {
    ("wine_lbfgs", "inputs_not_scaled"): ("InputScale", "standardise each feature"),
    ("wine_lbfgs", "loss_scaled_to_nothing"): ("WeightUpdateRatio", "remove the factor"),
    ("diabetes_trainer", "gradients_never_cleared"): ("GradientNotCleared", "zero_grad()"),
    ("diabetes_trainer", "training_in_evaluation_mode"): ("ModeMismatch", "model.train()"),
    ("reinforce_gridworld", "column_against_row"): ("LossShapeMismatch", "squeeze"),
    ("recommender_mf", "sorted_instead_of_shuffled"): ("BatchOrder", "shuffle the training data"),
    ("digits_mlp", "test_rows_in_the_training"): ("DataLeak", "remove duplicates across the splits"),
    ("lstm_forecast", "rate_far_too_low"): ("WeightUpdateRatio", "raise the learning rate"),
}
_TRAINED = ("digits_mlp", "lstm_forecast")


def _leading(lines: str) -> list[dict[str, Any]]:
    """Returns the findings that lead and stand, each in its newest form."""
    newest = {found["id"]: found for found in map(json.loads, lines.splitlines())}
    return [found for found in newest.values() if not found["leader"] and not found["healed"]]


def _judge(luff: Luff, program: str, operator: str) -> list[dict[str, Any]]:
    if program in _TRAINED:
        pytest.importorskip("sklearn")
        script, out = luff.tmp / "train.py", luff.tmp / "findings.jsonl"
        script.write_text(mutate(program, operator) or "")
        code, _, err = luff(
            "run", "--run", str(luff.tmp / "run"), "--findings", str(out), "--",
            sys.executable, str(script), SEED="0", PYTHONPATH=os.environ.get("PYTHONPATH", ""),
        )  # fmt: skip
        assert code == 0, err
        assert "nothing was recorded" not in err
        return _leading(out.read_text() if out.exists() else "")
    with tarfile.open(_KEPT / f"{program}-{operator}.tar.xz") as archive:
        archive.extractall(luff.tmp, filter="data")
    code, out_text, err = luff("check", str(luff.tmp / "run"), "--json")
    assert code in (0, 1, 3), err
    return _leading(out_text)


@pytest.mark.parametrize(("program", "operator"), _NAMED)
def test_the_fault_leads_and_its_remedy_names_the_edit(luff: Luff, program: str, operator: str) -> None:
    rule, remedy = _NAMED[program, operator]
    found = _judge(luff, program, operator)
    assert [finding["rule"] for finding in found] == [rule]
    assert remedy in found[0]["remedy"]


@pytest.mark.parametrize("program", dict.fromkeys(program for program, _ in _NAMED))
def test_the_program_as_it_was_is_silent(luff: Luff, program: str) -> None:
    assert _judge(luff, program, "original") == []


def test_the_runs_are_those_that_the_command_keeps() -> None:
    made = {f"{program}-{operator}" for program, edits in KEPT.items() for operator in ("original", *edits)}
    assert {path.name.removesuffix(".tar.xz") for path in _KEPT.glob("*.xz")} == made
    assert {half(*mutant) for mutant in _NAMED} == {"develop"}
