"""Programs of the fault bench: what Luff reports about faults, their repaired twins and healthy programs.

Ten faults and their twins are trained live, two of them in each run of the tests; today's rules judge eight stored
runs without training. benchmarks/detect.py runs all of them.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Luff

_ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join([str(_ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
_KEPT = _ROOT / "testdata" / "detect"

#: The rule that must report first, and its latest step.
_LIVE = {
    "pf03": ("DeadRelu", 10),
    "pf05": ("SymmetricUnits", 10),
    "pf08": ("WeightUpdateRatio", 20),
    "pf10": ("GradientNotCleared", 10),
    "pf11": ("ParamNotOptimized", 10),
    "pf15": ("NoGradient", 30),
    "pf16": ("LossInputContract", 10),
    "pf19": ("InputScale", 10),
    "pf31": ("SampleMixing", 10),
    "pf35": ("RepeatedBatch", 40),
}
_SHORT = ("pf10", "pf16", "ph14")  # one about the loop and one about the loss; the others run with --thorough
_REPLAYED = {
    "pf02": "NonFinite",
    "pf06": "InitialLoss",
    "pf09": "NonFinite",
    "pf12": "ParamNotOptimized",
    "pf18": "LossShapeMismatch",
    "pf02-fixed": None,
    "pf12-fixed": None,
    "pf18-fixed": None,
}


def _programs(names: Iterable[str]) -> list[Any]:
    return [name if name in _SHORT else pytest.param(name, marks=pytest.mark.thorough) for name in names]


def _train(luff: Luff, program: str, *options: str) -> list[tuple[str, int]]:
    """Returns rule and step of the leading findings of one training."""
    pytest.importorskip("sklearn")
    out = luff.tmp / "findings.jsonl"
    code, _, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--findings", str(out), "--",
        sys.executable, "-m", "faultbench.run", program, "--seed", "0", *options, PYTHONPATH=_PATH,
    )  # fmt: skip
    assert code == 0, err
    assert "nothing was recorded" not in err
    assert "rules did not see all of it" not in err
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return [(finding["rule"], finding["step"]) for finding in found if not finding["leader"]]


@pytest.mark.parametrize("program", _programs(["ph02", "ph11", "ph14"]))
def test_healthy_program_is_silent(luff: Luff, program: str) -> None:
    assert _train(luff, program) == []


@pytest.mark.parametrize("program", _programs(_LIVE))
def test_fault_is_named_first_and_in_time(luff: Luff, program: str) -> None:
    rule, by = _LIVE[program]
    found = _train(luff, program)
    assert found, "nothing was found"
    first = min(step for _, step in found)
    assert rule in {name for name, step in found if step == first}
    assert first <= by


@pytest.mark.parametrize("program", _programs(_LIVE))
def test_repaired_twin_is_silent(luff: Luff, program: str) -> None:
    assert _train(luff, program, "--fixed") == []


@pytest.mark.parametrize("name", _REPLAYED)
def test_kept_run_is_judged_by_todays_rules(luff: Luff, name: str) -> None:
    with tarfile.open(_KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(luff.tmp, filter="data")
    code, out, err = luff("check", str(luff.tmp / "run"), "--json")
    leading = [f for f in map(json.loads, out.splitlines()) if f["event"] == "new" and not f["leader"]]
    expected = _REPLAYED[name]
    assert (
        code == (0 if expected is None else 1 if all(f["severity"] == "warn" for f in leading) else 3)
        or leading
    ), err
    assert (leading[0]["rule"] if leading else None) == expected
