"""Tables and charts of smdebug's profiler, with the pandas and bokeh that are installed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader

pytest.importorskip("pandas")

from luff.compat.smdebug.profiler.analysis.utils.pandas_data_analysis import (
    PandasFrameAnalysis,
    Resource,
    StatsBy,
)
from luff.compat.smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame
from luff.compat.smdebug.profiler.analysis.utils.pytorch_dataloader_analysis import (
    PT_dataloader_analysis,
)

T0 = 1_600_000_020
STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 60 s: 10 s before the first step, 20 steps of 2 s, of which 0.5 s wait for data, then an evaluation."""
    path = tmp_path_factory.mktemp("profiler")
    system = path / "system" / "incremental" / "2020091312"
    system.mkdir(parents=True)
    rows = []
    for tick in range(120):
        at = T0 + tick / 2
        for kind, name, dimension, value in (
            ("cpu", "cpu0", "CPUUtilization", 40 if tick % 2 else 60),
            ("gpu", "gpu0", "GPUUtilization", 95 if 20 <= tick < 100 else 0),
            ("memory", "MemoryUsedPercent", "Platform", 50),
        ):
            rows.append(
                {
                    "Type": kind,
                    "Name": name,
                    "Dimension": dimension,
                    "Value": value,
                    "NodeId": "algo-1",
                    "Timestamp": at,
                }
            )
    (system / f"{T0}.algo-1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    phases = ["Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL", "DataLoaderIter", "Forward"]
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 0,
            "args": {"start_time_since_epoch_in_micros": T0 * 1_000_000},
        }
    ]
    events += [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}}
        for number, name in enumerate(phases, 1)
    ]

    def add(phase: str, name: str, begin: float, took: float, **args: Any) -> None:
        events.append(
            {
                "name": name,
                "ph": "X",
                "pid": phases.index(phase) + 1,
                "ts": round(begin * 1e6),
                "dur": round(took * 1e6),
                "args": {"pid": 7, **args},
            }
        )

    for step in range(STEPS):
        begin = 10 + 2 * step
        add(phases[0], phases[0], begin, 2, step_num=str(step))
        add(
            "DataLoaderIter",
            "DataLoaderIter::GetNext",
            begin + 0.1,
            1.4 if step == 5 else 0.5,
            worker_id=step % 2,
        )
        add("Forward", "Net", begin + 1.6, 0.3)
    add(phases[1], phases[1], 50, 4, step_num="0")
    pevents = path / "framework" / "pevents" / "2020091312"
    pevents.mkdir(parents=True)
    text = "[\n" + ",\n".join(json.dumps(row) for row in events) + "\n]"
    (pevents / f"{(T0 + 54) * 1_000_000}_0-algo-1_pythontimeline.json").write_text(text)
    return path


@pytest.fixture(scope="module")
def analysis(folder: Path) -> PandasFrameAnalysis:
    frame = PandasFrame(str(folder))
    return PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())


def test_tables_have_the_columns_of_the_original(folder: Path) -> None:
    frame = PandasFrame(str(folder), scan_interval=7_000_000)
    system, framework = frame.get_all_system_metrics(), frame.get_all_framework_metrics()
    assert list(system.columns) == [
        "timestamp",
        "timestamp_us",
        "value",
        "system_metric",
        "dimension",
        "nodeID",
        "type",
    ]
    assert list(framework.columns) == [
        "start_time",
        "end_time",
        "start_time_us",
        "end_time_us",
        "tid",
        "pid",
        "framework_metric",
        "step",
        "bytes",
        "process",
        "nodeID",
    ]
    assert len(system) == 360
    assert len(framework) == 61  # each once, although it is read in pieces
    assert system["timestamp"].iloc[0] == "2020-09-13T12:27:00:000000"
    assert set(framework["nodeID"]) == {"algo-1-0"}
    assert len(frame.get_all_system_metrics(["gpu0"])) == 120


def test_steps_and_times_choose_rows(folder: Path) -> None:
    frame = PandasFrame(str(folder))
    system, framework = frame.get_profiler_data_by_step(3, 5)
    assert sorted(framework["step"]) == [3, 4, 5]
    assert len(system) == 3 * 13  # 6 s of two ticks a second, both ends included
    _, framework = frame.get_profiler_data_by_time((T0 + 10) * 1e6, (T0 + 11.9) * 1e6)
    assert len(framework) == 3


def test_what_went_on_at_some_times(folder: Path) -> None:
    frame = PandasFrame(str(folder))
    phases, names, steps = frame.get_framework_metrics_by_timesteps(
        ["2020-09-13T12:27:10:300000", "2020-09-13T12:27:12:300000"]
    )
    assert phases == {"DataLoaderIter": 1}
    assert names == {"DataLoaderIter::GetNext": 1_000_000}
    assert steps == {"Step:ModeKeys.TRAIN": 4_000_000}
    phases, names = frame.get_framework_metrics_by_begin_and_end_timesteps(
        ["2020-09-13T12:27:10:000000"], ["2020-09-13T12:27:11:900000"]
    )
    assert phases == {"DataLoaderIter": 1, "Forward": pytest.approx(0.6)}


def test_statistics_of_the_job(analysis: PandasFrameAnalysis) -> None:
    found = analysis.get_job_statistics()
    assert found["initialization"] == 10_000_000
    assert found["training_loop_duration"] == 44_000_000
    assert found["job_duration"] == 59_500_000
    assert found["initialization_%"] == pytest.approx(100 * 10 / 59.5)
    assert "initialization" in repr(found)


def test_events_get_the_step_around_them(analysis: PandasFrameAnalysis) -> None:
    frame = analysis.framework_metrics_df
    loads = frame[frame["process"] == "DataLoaderIter"]
    assert list(loads["step"]) == list(range(STEPS))


def test_statistics_of_steps(analysis: PandasFrameAnalysis) -> None:
    by_phase = analysis.get_step_statistics()
    assert list(by_phase["training_phase"]) == ["Step:ModeKeys.EVAL", "Step:ModeKeys.TRAIN"]
    assert list(by_phase["duration_p50_us"]) == [4_000_000, 2_000_000]
    by_process = analysis.get_step_statistics(by=StatsBy.PROCESS).set_index("process")
    assert by_process.loc["DataLoaderIter", "duration_max_us"] == 1_400_000
    assert analysis.get_step_statistics(by="step") is None


def test_use_of_resources(analysis: PandasFrameAnalysis) -> None:
    found = analysis.get_utilization_stats().set_index("Resource")
    assert found.loc["cpu", "utilization_mean"] == 50
    assert set(found.index) == {"cpu", "gpu", "memory"}
    phases = analysis.get_utilization_stats(Resource.GPU, by=StatsBy.TRAINING_PHASE)
    by_phase = phases.set_index("Training_phase")["utilization_min"]
    assert by_phase["Before Step:ModeKeys.TRAIN"] == 0
    assert by_phase["Step:ModeKeys.TRAIN"] == 95
    assert analysis.get_utilization_stats("cpu") is None


def test_ranges_of_use_are_counted(analysis: PandasFrameAnalysis) -> None:
    found = analysis.get_device_usage_stats().set_index("type")
    assert found[(90, 100)]["gpu"] == 80
    assert found[(0, 10)]["gpu"] == 40
    assert found[(10, 90)]["cpu"] == 120
    assert analysis.get_device_usage_stats(Resource.CPU, [(30,)]).empty


def test_intervals_of_phases(analysis: PandasFrameAnalysis) -> None:
    found = analysis.get_training_phase_intervals()
    assert list(found["phase"]) == [
        "Before Step:ModeKeys.TRAIN",
        "Step:ModeKeys.TRAIN",
        "Between Step:ModeKeys.EVAL and Step:ModeKeys.TRAIN",
        "Step:ModeKeys.EVAL",
        "After Step:ModeKeys.EVAL",
    ]
    assert len(analysis.get_training_phase_intervals("Step:ModeKeys.TRAIN")) == 2 * STEPS + 1
    assert analysis.get_training_phase_intervals("Step:ModeKeys.PREDICT") is None


def test_loaders_are_analysed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = PT_dataloader_analysis(PandasFrame(str(folder)))
    slow = analysis.analyze_dataloader_getnext()
    assert list(slow["duration_us"]) == [1_400_000]
    assert "20 batches" in capsys.readouterr().out
    assert analysis.analyze_batchtime() is None
    assert analysis.analyze_dataloaderWorkers() is None


def test_charts_are_drawn(folder: Path) -> None:
    embed = pytest.importorskip("bokeh.embed")
    from luff.compat.smdebug.profiler.analysis.notebook_utils.heatmap import Heatmap
    from luff.compat.smdebug.profiler.analysis.notebook_utils.metrics_histogram import MetricsHistogram
    from luff.compat.smdebug.profiler.analysis.notebook_utils.step_histogram import StepHistogram
    from luff.compat.smdebug.profiler.analysis.notebook_utils.step_timeline_chart import StepTimelineChart
    from luff.compat.smdebug.profiler.analysis.notebook_utils.timeline_charts import TimelineCharts

    system, framework = LocalSystemMetricsReader(str(folder)), LocalAlgorithmMetricsReader(str(folder))
    histogram, steps = MetricsHistogram(system), StepHistogram(framework)
    histogram.plot(select_dimensions=["CPU", "GPU"])
    steps.plot()
    charts = [
        histogram,
        steps,
        StepTimelineChart(framework),
        TimelineCharts(system, framework),
        Heatmap(system),
    ]
    for chart, title in zip(
        charts,
        [
            "GPUUtilization_gpu0_node_algo-1",
            "Step:ModeKeys.TRAIN",
            "Duration of steps",
            "CPUUtilization",
            "percent",
        ],
        strict=True,
    ):
        assert title in json.dumps(embed.json_item(chart.layout))
    assert charts[3].find_time_annotations([21]) == {"Step:ModeKeys.TRAIN": 2, "DataLoaderIter": 0.5}
    assert "DataLoaderIter" in json.dumps(embed.json_item(charts[3].plot_detailed_profiler_data([20, 24])))
