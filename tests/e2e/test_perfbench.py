"""Two programs of perfbench as `./dev bench perf` trains and judges them, and the judging itself."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The usual limits want some time to be lost, so that a sentence is worth it.
SOON = "all,InputBound:seconds=2"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("perf")


def trained(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, program: str, folder: Path) -> Any:
    about = bench.PROGRAMS[program]
    monkeypatch.setitem(bench.PROGRAMS, program, replace(about, parameters=SOON))
    return bench.runs.trained(program, 0, False, 150, folder)["findings"]


def test_a_planted_bottleneck_is_named_and_a_healthy_program_is_silent(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = trained(bench, monkeypatch, "input_sleep", tmp_path / "planted")
    assert bench.names(bench.dearest(bench.timed(found)), "input_sleep"), found
    assert bench.timed(trained(bench, monkeypatch, "logs", tmp_path / "healthy")) == []


def test_the_list_is_what_the_page_says(bench: ModuleType) -> None:
    programs = bench.PROGRAMS
    on_host = [about for about in programs.values() if "gpu" not in about.needs]
    planted = sum(about.rule is not None for about in on_host)
    healthy, skipped = len(on_host) - planted, len(programs) - len(on_host)
    page = (BENCHMARKS.parent / "docs" / "profiling.md").read_text(encoding="utf-8")
    said = f"`./dev bench perf` trains {planted} programs with one planted bottleneck each on the CPU"
    more = f"and {healthy} healthy ones that look suspicious; {skipped} more need a GPU"
    assert planted and said in page and more in page


def test_a_step_is_as_long_as_it_is_without_others(bench: ModuleType) -> None:
    thread = {"run_queue": 4.0, "seconds": 10.0}
    profile = {"seconds": 9.0, "evaluation": {"seconds": 1.0}, "steps": 100, "thread": thread}
    assert bench.runs.step_seconds("input_sleep", profile) == pytest.approx(0.06)
    assert bench.runs.step_seconds("threads", profile) == pytest.approx(0.1)  # its own threads took the cores


def test_a_finding_that_follows_from_another_does_not_lead(bench: ModuleType) -> None:
    first = {"id": "a", "leader": "", "saving": {"seconds_a_step": 0.1}}
    second = {"id": "b", "leader": "a", "saving": {"seconds_a_step": 0.2}}
    assert bench.dearest([first, second]) is first
    assert bench.dearest([]) is None


def test_programs_for_a_gpu_run_and_ask_for_the_trace_that_their_rule_needs(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LUFF_PERFBENCH_DEVICE", "cpu")
    (trace,) = bench.runs.trained("gpu_copy_same_stream", 0, True, 6, tmp_path)["profile"]["traces"]
    assert (trace["first_step"], trace["steps"]) == (3, 3)
    assert bench.runs.asking("gpu_item", 320) == ["--trace-at", "100", "--stacks"]  # they tell the line
    assert bench.runs.asking("gpu_anomaly", 320) == []
    of_device = {"HostSync", "PageableCopy", "LaunchBound", "Tf32Off", "HalfPrecisionOff", "AllocatorThrash"}
    for about in bench.PROGRAMS.values():
        assert bool(about.trace) == (about.rule in {*of_device, "CopyNotOverlapped"}), about
