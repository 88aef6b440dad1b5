"""Boosting programs of the fault bench under `luff run`: faults are named in time; the others have no findings."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]

#: The rule that reports first, and the latest round that the label allows.
FAULTS = {
    "px01": ("TreeDepth", 30),
    "px02": ("FeatureImportanceOverweight", 20),
    "px03": ("LossNotDecreasing", 60),
}


@pytest.fixture
def train(tmp_path):
    """Returns a function that trains a program and returns its leading findings: (rule, step)."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("sklearn") is None:
        pytest.skip("the fault bench needs torch and scikit-learn")
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def run(program, *options):
        out = tmp_path / "findings.jsonl"
        path = os.pathsep.join(filter(None, [str(_ROOT / "benchmarks"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [
                executable, "run", "--run", str(tmp_path / "run"), "--findings", str(out), "--", sys.executable,
                "-m", "faultbench.run", program, "--seed", "0", *options,
            ],
            env=os.environ | {"PYTHONPATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "nothing was recorded" not in done.stderr
        found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return [(finding["rule"], finding["step"]) for finding in found if not finding["leader"]]

    return run


@pytest.mark.parametrize("program", FAULTS)
def test_fault_is_named_in_time(train, program):
    found = train(program)
    rule, last = FAULTS[program]
    assert found and found[0][0] == rule, found
    assert found[0][1] <= last


@pytest.mark.parametrize("program", FAULTS)
def test_repaired_twin_is_silent(train, program):
    assert train(program, "--fixed") == []


@pytest.mark.parametrize("program", ["px04", "px05"])
def test_healthy_program_is_silent(train, program):
    assert train(program) == []
