"""`luff profile` and `luff check` on folders of SageMaker's profiler, and the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Command

T0 = 1_600_000_020


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """600 s in which the GPU waits for the CPU; a bad line, and a last one that is cut off."""
    system = tmp_path / "profiler" / "system" / "incremental" / "2020091312"
    system.mkdir(parents=True)
    for minute in range(10):
        rows = [
            json.dumps(
                {
                    "Type": kind,
                    "Name": f"{kind}0",
                    "Dimension": f"{kind.upper()}Utilization",
                    "Value": value,
                    "NodeId": "algo-1",
                    "Timestamp": T0 + 60 * minute + tick / 2,
                }
            )
            for tick in range(120)
            for kind, value in (("cpu", 99), ("gpu", 2))
        ]
        if minute == 3:
            rows[7] = "not json"
        (system / f"{T0 + 60 * minute}.algo-1.json").write_text("\n".join([*rows, '{"Type": "cp']))
    return tmp_path / "profiler"


def test_the_folder_is_shown(luff: Command, folder: Path) -> None:
    done = luff("profile", folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("CPUBottleneck, LowGPUUtilization fire\n")
    assert "algo-1" in done.out
    assert "1,200 data points" in done.out
    assert ".algo-1.json, line 8: found no JSON" in done.out
    found = json.loads(luff("profile", folder, "--json").out)
    assert found["rules"]["CPUBottleneck"]["fired"] is True
    assert found["system"]["algo-1"]["GPU"]["p50"] == 2
    assert len(found["problems"]) == 1


def test_rules_are_checked(luff: Command, folder: Path) -> None:
    done = luff("check", folder, "--rules", "CPUBottleneck:cpu_threshold=99,LowGPUUtilization", "--json")
    assert done.code == 1
    cpu, gpu = (json.loads(line) for line in done.out.splitlines())
    assert (cpu["rule"], cpu["fired"], cpu["Violations"]) == ("CPUBottleneck", False, 0)
    assert (gpu["rule"], gpu["fired"]) == ("LowGPUUtilization", True)
    assert "not read: " in done.err
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace("not json\n", ""))
    assert luff("check", folder, "--rules", "IOBottleneck").code == 0


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("CPUBotleneck", "CPUBottleneck"),
        ("CPUBottleneck:cpu_treshold=5", "cpu_threshold"),
        ("CPUBottleneck:cpu_threshold", "PARAMETER=VALUE"),
    ],
)
def test_a_wrong_rule_is_named(luff: Command, folder: Path, rules: str, words: str) -> None:
    done = luff("check", folder, "--rules", rules)
    assert done.code == 2
    assert words in done.err


def test_an_empty_folder_is_no_success(luff: Command, tmp_path: Path) -> None:
    (tmp_path / "x" / "system").mkdir(parents=True)
    assert luff("check", tmp_path / "x").code == 1
    assert "no data" in luff("profile", tmp_path / "x").out


def test_options_of_runs_are_refused(luff: Command, folder: Path) -> None:
    assert luff("profile", folder, "--rank", "0").code == 2
    assert luff("check", folder, "--follow").code == 2


def test_a_run_goes_into_the_layout_and_is_read_there(luff: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = luff("export", run, out, "--to", "smdebug", "--profiler")
    assert done.code == 0, done.err
    assert "20 steps" in done.out or "22 steps" in done.out
    found = json.loads(luff("profile", out, "--json").out)
    assert {"Step:ModeKeys.TRAIN", "Forward", "Backward(post-forward)"} <= {
        one["phase"] for one in found["phases"]
    }
    assert luff("export", run, out, "--to", "smdebug", "--profiler").code == 2
    assert luff("export", run, tmp_path / "x", "--to", "csv", "--profiler").code == 2


def test_rules_of_the_profiler_look_at_runs(luff: Command, run: Path) -> None:
    done = luff("check", run, "--rules", "StepOutlier,MaxInitializationTime")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].startswith("StepOutlier")
