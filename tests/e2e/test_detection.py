"""Programs of the fault bench under `luff run`: healthy ones are silent, faults get the rule that fits them.

A few short programs; benchmarks/detect.py runs all of them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from .conftest import Luff

_PATH = os.pathsep.join([str(Path(__file__).parents[2] / "benchmarks"), os.environ.get("PYTHONPATH", "")])


def _findings(luff: Luff, program: str) -> list[tuple[str, str]]:
    """Rules and severities of what was found in one training."""
    pytest.importorskip("sklearn")
    out = luff.tmp / "findings.jsonl"
    code, _, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--findings", str(out), "--",
        sys.executable, "-m", "faultbench.run", program, "--seed", "0", PYTHONPATH=_PATH,
    )  # fmt: skip
    assert code == 0, err
    assert "nothing was recorded" not in err
    assert "rules did not see all of it" not in err
    found = [json.loads(line) for line in out.read_text().splitlines()]
    return [(finding["rule"], finding["severity"]) for finding in found]


@pytest.mark.parametrize("program", ["ph02", "ph11", "ph14"])
def test_healthy_program_is_silent(luff: Luff, program: str) -> None:
    assert _findings(luff, program) == []


@pytest.mark.parametrize(
    ("program", "rules"),
    [
        ("pf03", {"DeadRelu"}),
        ("pf07", {"WeightUpdateRatio"}),
        ("pf11", {"UnchangedTensor"}),
    ],
)
def test_fault_gets_the_rule_that_fits(luff: Luff, program: str, rules: set[str]) -> None:
    assert {rule for rule, _ in _findings(luff, program)} & rules
