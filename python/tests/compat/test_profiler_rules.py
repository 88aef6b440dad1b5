"""The twelve rules of smdebug's profiler, with answers that are known by hand."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from luff._verbs.profiler import _evaluate
from luff.compat.smdebug.exceptions import NoMoreProfilerData, RuleEvaluationConditionMet
from luff.compat.smdebug.profiler.rules import (
    RULES,
    BatchSize,
    CPUBottleneck,
    Dataloader,
    GPUMemoryIncrease,
    IOBottleneck,
    LoadBalancing,
    LowGPUUtilization,
    MaxInitializationTime,
    OverallFrameworkMetrics,
    OverallSystemUsage,
    ProfilerReport,
    StepOutlier,
)
from luff.compat.smdebug.rules import invoke_rule
from luff.compat.smdebug.trials import create_trial
from luff.compat.smdebug.trials.profiler_trial import ProfilerTrial

T0 = 1_600_000_020  # a full minute


def judged(rule: Any) -> int:
    """Runs a rule to the end; returns in how many windows it fired."""
    fired = 0
    for number in range(10_000):
        try:
            rule.invoke(number)
        except RuleEvaluationConditionMet:
            fired += 1
        except NoMoreProfilerData:
            return fired
    raise AssertionError("the rule does not come to an end")


# ---- rules ------------------------------------------------------------------------------------------------------


def ticks(folder: Any, count: int, gpu: Any, cpu: Any, dimension: str = "CPUUtilization") -> None:
    for tick in range(count):
        at = T0 + tick * 0.5
        folder.value(at, "GPUUtilization", gpu(tick) if callable(gpu) else gpu)
        folder.value(at + 0.001, dimension, cpu(tick) if callable(cpu) else cpu, "cpu0")


def test_all_twelve_are_there() -> None:
    assert sorted(RULES) == [
        "BatchSize", "CPUBottleneck", "Dataloader", "GPUMemoryIncrease", "IOBottleneck", "LoadBalancing",
        "LowGPUUtilization", "MaxInitializationTime", "OverallFrameworkMetrics", "OverallSystemUsage",
        "ProfilerReport", "StepOutlier",
    ]  # fmt: skip


def test_cpu_bottleneck_counts_ticks(folder: Any) -> None:
    # 1,200 ticks of half a second: in 3 of 4 the GPU has nothing to do, and the core is full in 2 of these 3.
    ticks(folder, 1200, lambda tick: 5 if tick % 4 else 80, lambda tick: 95 if tick % 4 in (1, 2) else 20)
    trial = create_trial(folder.write(), profiler=True)
    rule = CPUBottleneck(trial)
    assert judged(rule) == 0  # 50 % is not more than 50 %
    assert rule.report["Datapoints"] == 1200
    assert rule.report["Violations"] == 600
    assert rule.report["Details"]["low_gpu_utilization"] == 900
    assert next(iter(rule.report["Details"]["bottlenecks"].values())) == {"GPUs": 1, "CPUs": 1}
    assert rule.report["RuleParameters"] == "threshold:50\ncpu_threshold:90\ngpu_threshold:10\npatience:1000"

    rule = CPUBottleneck(trial, threshold=49)
    # Windows end after 120, 240, ... ticks; the first with more than 1,000 is the ninth of ten.
    assert judged(rule) == 2
    assert rule.report["RuleTriggered"] == 2


def test_io_bottleneck_looks_at_waits(folder: Any) -> None:
    ticks(folder, 1200, 5, 60, dimension="I/OWaitPercentage")
    trial = create_trial(folder.write(), profiler=True)
    assert judged(IOBottleneck(trial)) == 2
    assert judged(IOBottleneck(trial, io_threshold=60)) == 0
    assert judged(CPUBottleneck(trial)) == 0


def test_low_gpu_utilization_needs_patience(folder: Any) -> None:
    ticks(folder, 1200, lambda tick: tick % 50, 10)
    trial = create_trial(folder.write(), profiler=True)
    rule = LowGPUUtilization(trial)
    assert judged(rule) == 2
    assert rule.report["Violations"] == 2
    found = rule.report["Details"]["algo-1"]["gpu0"]
    assert found["gpu_max"] == 49
    assert found["gpu_95"] == pytest.approx(np.quantile(np.tile(np.arange(50), 10), 0.95))
    assert found["p50"] == pytest.approx(24.5)
    assert judged(LowGPUUtilization(trial, patience=1200)) == 0


def test_low_gpu_utilization_sees_use_that_goes_up_and_down(folder: Any) -> None:
    ticks(folder, 1200, lambda tick: 0 if tick % 10 == 0 else 99, 10)
    trial = create_trial(folder.write(), profiler=True)
    assert judged(LowGPUUtilization(trial)) == 2
    assert judged(LowGPUUtilization(trial, threshold_p5=0)) == 0


def test_batch_size_wants_all_three_low(folder: Any) -> None:
    ticks(folder, 1200, 30, 40)
    for tick in range(1200):
        folder.value(T0 + tick * 0.5, "GPUMemoryUtilization", 20)
    trial = create_trial(folder.write(), profiler=True)
    rule = BatchSize(trial)
    assert judged(rule) == 2
    assert rule.report["Violations"] == 2
    assert rule.report["Details"]["algo-1"]["gpu_memory"]["gpu0"]["p50"] == 20
    for threshold in ("cpu_threshold_p95", "gpu_threshold_p95", "gpu_memory_threshold_p95"):
        assert judged(BatchSize(trial, **{threshold: 10})) == 0


def test_gpu_memory_increase_compares_two_means(folder: Any) -> None:
    for tick in range(1200):
        folder.value(T0 + tick * 0.5, "GPUMemoryUtilization", 20 if tick < 1100 else 80)
    rule = GPUMemoryIncrease(create_trial(folder.write(), profiler=True))
    assert judged(rule) == 1  # once, then on to the end: the tick is in the last window
    # The mean of the last 10 values, k of them new, less that of the 9 values before the last two.
    found = [60 * (k / 10 - max(k - 2, 0) / 9) for k in range(1, 11)]
    assert rule.report["Violations"] == sum(more > 5 for more in found)
    assert rule.report["Details"]["algo-1"]["gpu0"]["gpu_max"] == 80


def test_load_balancing_measures_the_distance_of_histograms(folder: Any) -> None:
    for tick in range(1200):
        folder.value(T0 + tick * 0.5, "GPUUtilization", 100, "gpu0")
        folder.value(T0 + tick * 0.5, "GPUUtilization", 10, "gpu1")
        folder.value(T0 + tick * 0.5, "GPUUtilization", 100 if tick % 2 else 10, "gpu2")
    rule = LoadBalancing(create_trial(folder.write(), profiler=True))
    assert judged(rule) == 2
    distances = rule.report["Details"]["algo-1"]["distances"]
    assert distances["gpu0"]["gpu1"] == pytest.approx(np.sqrt(np.log(2)))
    # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4).
    half = np.log(4 / 3) + 0.5 * np.log(2 / 3) + 0.5 * np.log(2)
    assert distances["gpu0"]["gpu2"] == pytest.approx(np.sqrt(half / 2))
    assert rule.report["Details"]["algo-1"]["workloads"]["gpu0"][-1] == 1200


def test_max_initialization_time_waits_for_the_first_step(folder: Any) -> None:
    for minute in range(30):
        folder.value(T0 + 60 * minute, "CPUUtilization", 50, "cpu0")
    folder.event("Step:ModeKeys.TRAIN", T0 + 25 * 60, 1, step_num="0")
    trial = create_trial(folder.write(), profiler=True)
    rule = MaxInitializationTime(trial)
    assert judged(rule) == 4  # minutes 21 to 24
    assert rule.report["Details"]["step_num"]["first"] == (T0 + 25 * 60) * 1e6
    assert rule.report["Details"]["job_start"] == T0
    assert judged(MaxInitializationTime(trial, threshold=26)) == 0


def test_step_outlier_counts_slow_steps(folder: Any) -> None:
    at = T0
    for step in range(300):
        took = 2.0 if step % 20 == 19 else 0.2
        folder.event("Step:ModeKeys.TRAIN", at, took, step_num=str(step))
        at += took
    trial = create_trial(folder.write(), profiler=True)
    rule = StepOutlier(trial)
    judged(rule)
    found = rule.report["Details"]["step_details"]["algo-1-0"]["Step:ModeKeys.TRAIN"]
    assert found["number_of_outliers"] == 15
    assert found["step_numbers"][:2] == ["19", "39"]
    assert found["step_stats"]["mean"] == pytest.approx((285 * 0.2 + 15 * 2) / 300)
    assert rule.report["RuleTriggered"] > 0
    assert judged(StepOutlier(trial, n_outliers=15)) == 0
    assert judged(StepOutlier(trial, mode="Step:ModeKeys.EVAL")) == 0


@pytest.mark.parametrize(("workers", "fires"), [(2, True), (3, False), (8, False), (9, True)])
def test_dataloader_compares_processes_with_cores(folder: Any, workers: int, fires: bool) -> None:
    for second in range(30):
        for core in range(4):
            folder.value(T0 + second, "CPUUtilization", 50, f"cpu{core}")
        for worker in range(workers):
            folder.event("DataLoaderWorker", T0 + second + 0.1, 0.5, pid=100 + worker)
    folder.event("DataLoaderIterInitialize", T0, 0.1, num_workers=workers, pin_memory=True)
    rule = Dataloader(create_trial(folder.write(), profiler=True))
    assert (judged(rule) > 0) == fires
    assert rule.report["Details"]["cores"] == 4
    assert rule.report["Details"]["dataloaders"] == workers
    assert rule.report["Details"]["num_workers"] == workers


def test_tables_of_the_whole_job(folder: Any) -> None:
    for tick in range(101):
        folder.value(T0 + tick, "CPUUtilization", tick, "cpu0")
        folder.value(T0 + tick, "CPUUtilization", 0, "cpu1")
    folder.event("Step:ModeKeys.TRAIN", T0, 3)
    folder.event("Step:ModeKeys.EVAL", T0 + 4, 1)
    folder.event("Forward", T0, 1)
    folder.event("cpu_functions", T0, 3, "aten::mm")
    folder.event("cpu_functions", T0, 0.03, "aten::t")
    folder.event("gpu_functions-dev:0", T0, 1, "gemm")
    trial = create_trial(folder.write(), profiler=True)
    usage, framework = OverallSystemUsage(trial), OverallFrameworkMetrics(trial)
    assert judged(usage) == judged(framework) == 0
    assert usage.report["Details"]["algo-1"]["CPU"] == {
        "max": 50,
        "p99": 49.5,
        "p95": 47.5,
        "p50": 25,
        "min": 0,
    }
    found = framework.report["Details"]
    assert found["phase"] == {"TRAIN": 75, "EVAL": 25, "others": 0}
    assert found["CPU"] == {"aten::mm": 100}  # operators of up to 2 % are left out
    assert found["ratio"] == {"CPU operators": 75.19, "GPU operators": 24.81}


def test_the_report_holds_all_rules(folder: Any, tmp_path: Path) -> None:
    ticks(folder, 300, 5, 95)
    folder.event("Step:ModeKeys.TRAIN <script>", T0, 1)
    out = tmp_path / "out"
    trial = create_trial(folder.write(), profiler=True, output_dir=str(out))
    rule = ProfilerReport(trial, CPUBottleneck_patience=100, lowgpuutilization_threshold_p95=60)
    with pytest.raises(RuleEvaluationConditionMet) as raised:
        invoke_rule(rule, raise_eval_cond=True)
    assert raised.value.end_of_rule
    written = {path.stem: json.loads(path.read_text()) for path in (out / "profiler-reports").iterdir()}
    assert set(written) == set(RULES) - {"ProfilerReport"}
    assert written["CPUBottleneck"]["RuleTriggered"] == 3
    assert written["LowGPUUtilization"]["RuleTriggered"] == 0
    page = (out / "profiler-report.html").read_text()
    assert page.index("Training job summary") < page.index("System usage") < page.index("CPUBottleneck")
    assert "<script" not in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("name", "words"),
    [("CPUBottlenek_threshold", "CPUBottleneck"), ("CPUBottleneck_cpu_treshold", "cpu_threshold")],
)
def test_a_wrong_parameter_is_named(folder: Any, name: str, words: str) -> None:
    ticks(folder, 1, 5, 95)
    with pytest.raises(TypeError, match=words):
        ProfilerReport(create_trial(folder.write(), profiler=True), **{name: 1})


def test_data_that_lie_years_apart_are_looked_at_soon(tmp_path: Path) -> None:
    for at in (1_600_000_000, 1_600_000_030, 4_000_000_000):
        line = {"Type": "cpu", "Name": "cpu0", "Dimension": "CPUUtilization", "Value": 50, "NodeId": "algo-1"}
        place = (
            tmp_path
            / "system"
            / "incremental"
            / datetime.fromtimestamp(at, timezone.utc).strftime("%Y%m%d%H")
        )
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{at}.algo-1.json").write_text(json.dumps({**line, "Timestamp": at + 0.5}) + "\n")
    trial = ProfilerTrial("job", str(tmp_path), None, follow=False)
    rule = RULES["OverallSystemUsage"](trial)
    looked = []
    _evaluate(trial, [rule], lambda values, _: looked.append([value.timestamp for value in values]))
    assert looked == [[1_600_000_000.5, 1_600_000_030.5], [4_000_000_000.5]]
