"""The profiler of smdebug: its files, its readers, its rules with answers that are known by hand."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luff import _core
from luff._codes import EndReason, Mode, Phase
from luff.compat.smdebug.exceptions import NoMoreProfilerData
from luff.compat.smdebug.profiler import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    ProfilerSystemEvents,
    SMProfilerEvents,
)
from luff.compat.smdebug.profiler._files import system_records, timeline_records
from luff.compat.smdebug.profiler._run import system_events
from luff.compat.smdebug.profiler._write import write_profile
from luff.compat.smdebug.profiler.analysis.notebook_utils.training_job import TrainingJob
from luff.compat.smdebug.profiler.analysis.utils.merge_timelines import MergedTimeline, MergeUnit
from luff.compat.smdebug.profiler.profiler_config_parser import MetricsCategory, ProfilerConfigParser
from luff.compat.smdebug.profiler.rules import (
    StepOutlier,
)
from luff.compat.smdebug.profiler.utils import TimeUnits
from luff.compat.smdebug.trials import create_trial
from luff.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from luff.trial import open_trial

T0 = 1_600_000_020  # a full minute
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just({}),
    st.lists(st.integers()),
)
_KEYS = [
    "Type",
    "Name",
    "Dimension",
    "Value",
    "NodeId",
    "Timestamp",
    "name",
    "ph",
    "ts",
    "dur",
    "pid",
    "tid",
    "args",
]
_LINES = st.one_of(
    st.dictionaries(
        st.sampled_from(_KEYS),
        st.one_of(_SCALARS, st.sampled_from(["X", "B", "E", "M", "process_name", "thread_name"])),
    ).map(lambda found: json.dumps(found).encode() + b","),
    st.sampled_from([b"[", b"]", b"", b"{", b"null"]),
)


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_last_line_that_is_cut_off_is_skipped(tmp_path: Path) -> None:
    row = {"Type": "cpu", "Name": "cpu0", "Dimension": "x", "Value": 1, "NodeId": "algo-1", "Timestamp": 2.5}
    file = tmp_path / "1600000020.algo-1.json"
    file.write_text(json.dumps(row) + "\n" + json.dumps(row)[:30])
    records, problems = system_records(str(file))
    assert len(records) == 1
    assert problems == []


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "null",
        '{"Type": "cpu"}',
        '{"Type": "cpu", "Dimension": "x", "Value": "9", "NodeId": "n", "Timestamp": 1}',
        '{"Type": "cpu", "Dimension": "x", "Value": 9, "NodeId": "n", "Timestamp": NaN}',
        '{"Type": 1, "Dimension": "x", "Value": 9, "NodeId": "n", "Timestamp": 1}',
        '{"Type": "cpu", "Dimension": "x", "Value": 1' + 400 * "0" + ', "NodeId": "n", "Timestamp": 1}',
        "[" * 100_000,
    ],
)
def test_another_line_is_named_and_hides_nothing(tmp_path: Path, line: str) -> None:
    row = json.dumps({"Type": "cpu", "Dimension": "x", "Value": 9, "NodeId": "n", "Timestamp": 1})
    file = tmp_path / "x.json"
    file.write_text(f"{row}\n{line}\n{row}\n")
    records, problems = system_records(str(file))
    assert len(records) == 2
    assert len(problems) == 1
    assert problems[0].startswith(f"{file}, line 2: ")


def test_a_timeline_of_a_killed_job_is_read_up_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "x_json"
    event = json.dumps({"name": "a", "ph": "X", "ts": 1, "dur": 2, "pid": 0})
    file.write_text("[\n" + f"{event},\n" * 3 + event[:20])
    records, problems = timeline_records(str(file))
    assert len(records) == 3
    assert problems == []
    file.write_text("[\n" + f"{event},\n" + "oops,\n" + f"{event},\n{event}\n]")
    records, problems = timeline_records(str(file))
    assert len(records) == 3
    assert problems[0].startswith(f"{file}, line 3: ")


@pytest.mark.parametrize("read", [system_records, timeline_records])
@given(st.one_of(st.binary(max_size=400), st.lists(_LINES, max_size=8).map(b"\n".join)))
@settings(max_examples=300, deadline=None)
def test_no_file_is_too_strange(read: Any, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.json"
        file.write_bytes(content)
        records, problems = read(str(file))
        for problem in problems:
            assert problem.startswith(f"{file}, line ")
        parser = SMProfilerEvents() if read is timeline_records else ProfilerSystemEvents()
        parser.read_events_from_json_data(records, *(("0-algo-1",) if read is timeline_records else ()))
        assert len(parser.get_all_events()) <= len(records)


def test_files_that_lead_elsewhere_are_not_opened(tmp_path: Path, folder: Any) -> None:
    folder.value(T0, "CPUUtilization", 5, "cpu0")
    path = Path(folder.write())
    (path / "system/incremental/2020091312/1600000080.algo-1.json").symlink_to("/etc/passwd")
    reader = LocalSystemMetricsReader(str(path))
    assert len(reader.get_events(0, 2e15)) == 1
    with pytest.raises(OSError, match="symbolic links"):
        system_records(str(path / "system/incremental/2020091312/1600000080.algo-1.json"))


def test_readers_give_what_lies_in_a_time(folder: Any) -> None:
    for second in range(300):
        folder.value(T0 + second, "CPUUtilization", second % 100, "cpu0")
        folder.event("Step:ModeKeys.TRAIN", T0 + second, 0.5, step_num=str(second))
    path = folder.write()
    system, framework = LocalSystemMetricsReader(path), LocalAlgorithmMetricsReader(path)
    assert len(system.get_events(T0 + 10, T0 + 19, TimeUnits.SECONDS)) == 10
    assert len(system.get_events(T0 + 10, T0 + 19, TimeUnits.SECONDS, "gpu")) == 0
    events = framework.get_events(T0 + 10, T0 + 11.6, TimeUnits.SECONDS)
    assert [event.event_args["step_num"] for event in events] == ["10", "11"]
    assert [event.event_phase for event in events] == ["Step:ModeKeys.TRAIN"] * 2
    assert len(framework.get_events_by_step(5, 8)) == 3
    assert system.get_timestamp_of_first_available_file() == T0 * 1_000_000


def test_timelines_of_all_phases_are_merged(folder: Any) -> None:
    for step in range(4):
        folder.event("Step:ModeKeys.TRAIN", T0 + step, 0.9, step_num=str(step))
        folder.event("Forward", T0 + step, 0.3, step_num=str(step))
        folder.value(T0 + step, "GPUUtilization", 10)
    written = MergedTimeline(folder.write()).merge_timeline(1, 3, MergeUnit.STEP)
    rows = json.loads(Path(written).read_text())
    names = {
        row["pid"]: row["args"]["name"]
        for row in rows
        if row["name"] == "process_name" and "name" in row["args"]
    }
    assert names == {1: "Step:ModeKeys.TRAIN", 10_000: "Forward"}
    assert sum(row["ph"] == "X" for row in rows) == 4
    assert sum(row["ph"] == "C" for row in rows) == 2
    assert sum(row["name"] == "sys_metrics_bottlenecks" for row in rows) == 2


# ---- configuration ----------------------------------------------------------------------------------------------


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> ProfilerConfigParser:
    path = tmp_path / "profilerconfig.json"
    path.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "out"), **parameters}}))
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(path))
    return ProfilerConfigParser()


def test_a_part_of_the_configuration_is_a_literal_and_never_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(ran)!r}).touch() or {{'StartStep': 0}}"
    parser = configured(tmp_path, monkeypatch, DetailedProfilingConfig=code)
    assert not ran.exists()
    assert parser.profiling_enabled
    assert not parser.config.detailed_profiling_config.is_enabled()


@pytest.mark.parametrize(
    "text",
    [
        '{"StartStep": 0, "NumSteps": 2}',
        "{'StartStep': 0, 'NumSteps': 2}",
        '{"startstep": "0", "numsteps": "2"}',
    ],
)
def test_steps_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    parser = configured(tmp_path, monkeypatch, DetailedProfilingConfig=text)
    wanted = [parser.should_save_metrics(MetricsCategory.DETAILED_PROFILING, step) for step in range(4)]
    assert wanted == [True, True, False, False]


def test_the_configuration_may_change_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = configured(tmp_path, monkeypatch)
    assert not parser.should_save_metrics(MetricsCategory.DETAILED_PROFILING, 7)
    configured(
        tmp_path, monkeypatch, DetailedProfilingConfig='{"StartStep": 7, "NumSteps": 1, "x": "longer"}'
    )
    parser.load_config()
    assert parser.should_save_metrics(MetricsCategory.DETAILED_PROFILING, 7)
    (tmp_path / "profilerconfig.json").unlink()
    parser.load_config()
    assert not parser.profiling_enabled


# ---- runs of Luff -----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    session = _core.Session.open(str(tmp_path / "run"), config_json="{}")
    for step in range(120):
        session.begin_step(int(Mode.TRAIN), step)
        for phase in (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD):
            _core.enter_phase(int(phase))
            sum(range(500))
            _core.leave_phase(int(phase))
        session.end_step(int(Mode.TRAIN), step, step, step)
    session.close(int(EndReason.COMPLETED), 10.0)
    return tmp_path / "run"


def test_a_run_reads_as_timelines(run: Path) -> None:
    reader = TrainingJob(str(run)).get_framework_metrics_reader()
    events = reader.get_events(0, 4e15)
    assert len(events) == 480
    assert {event.event_phase for event in events} == {
        "Step:ModeKeys.TRAIN", "DataLoaderIter", "Forward", "Backward(post-forward)",
    }  # fmt: skip
    found = reader.get_events_by_step(3, 5)
    mine = [event for event in found if event.event_args["step_num"] in ("3", "4")]
    assert len(mine) == 8
    begin = min(event.start_time for event in mine)
    for event in found:  # steps follow each other without a gap, and the original counts whole microseconds
        assert event in mine or event.start_time + event.duration == pytest.approx(begin, abs=2)
    rule = StepOutlier(create_trial(str(run), profiler=True), n_outliers=120)
    for number in range(10_000):  # it never fires: that would raise something else
        try:
            rule.invoke(number)
        except NoMoreProfilerData:
            break
    else:
        pytest.fail("the rule does not come to an end")
    assert rule.report["Datapoints"] == 120


def test_a_run_is_written_in_the_layout_of_the_original(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_profile(str(run), str(out))["steps"] == 120
    back = LocalAlgorithmMetricsReader(str(out)).get_events(0, 4e15)
    mine = LocalAlgorithmMetricsReader(str(run)).get_events(0, 4e15)
    assert len(back) == len(mine)
    for one, other in zip(
        sorted(back, key=lambda e: (e.start_time, e.event_name)),
        sorted(mine, key=lambda e: (round(e.start_time), e.event_name)),
        strict=True,
    ):
        assert (one.event_name, one.event_phase, one.node_id) == (
            other.event_name,
            other.event_phase,
            other.node_id,
        )
        assert one.start_time == pytest.approx(other.start_time, abs=1)
        assert one.duration == pytest.approx(other.duration, abs=1)
    assert (out / "framework" / "training_job_end.ts").exists()
    with pytest.raises(AlreadyExistsError):
        write_profile(str(run), str(out))


class Sampled:
    """What a sampler measured of a host with two cores and a GPU, twice a second."""

    number = 0
    series: ClassVar[dict[str, tuple[str, bool, list[float]]]] = {
        "cpu.0.busy": ("s", True, [0, 0.5, 0.75, 0.75]),
        "cpu.1.busy": ("s", True, [0, 0.1, 0.2, 0.3]),
        "cpu.busy": ("s", True, [0, 0.6, 0.95, 1.05]),
        "cpu.iowait": ("s", True, [0, 0, 0.5, 0.5]),
        "memory.total": ("bytes", False, [8e9, 8e9, 8e9, 8e9]),
        "memory.available": ("bytes", False, [8e9, 6e9, 4e9, 2e9]),
        "net.eth0.received": ("bytes", True, [0, 100, 100, 50]),
        "gpu.0.utilisation": ("1", False, [0.1, 0.2, 0.3, 0.4]),
        "gpu.0.memory.used": ("bytes", False, [1e9, 1e9, 2e9, 2e9]),
        "gpu.0.memory.total": ("bytes", False, [4e9]),
        "rank.3.cpu": ("s", True, [0, 1, 2, 3]),
    }
    units: ClassVar[dict[str, str]] = {name: one[0] for name, one in series.items()}

    def columns(self, name: str) -> dict[str, Any]:
        values = np.array(self.series[name][2], dtype=float)
        return {"unix_s": T0 + np.arange(len(values)) / 2, "value": values}

    def rates(self, name: str) -> dict[str, Any]:
        assert self.series[name][1]
        found = self.columns(name)
        grown = np.diff(found["value"])
        good = grown >= 0
        return {"unix_s": found["unix_s"][1:][good], "value": grown[good] / 0.5}


def test_samples_become_system_metrics() -> None:
    found = system_events(SimpleNamespace(hosts=[Sampled()]))  # type: ignore[arg-type]
    by_name: dict[str, list[float]] = {}
    for event in found:
        assert event.node_id == "algo-1"
        by_name.setdefault(f"{event.type} {event.name} {event.dimension}", []).append(event.value)
    assert by_name == {
        "cpu cpu0 CPUUtilization": [100, 50, 0],
        "cpu cpu1 CPUUtilization": [20, 20, 20],
        "i/o cpu I/OWaitPercentage": [0, 50, 0],
        "memory MemoryUsedPercent Platform": [0, 25, 50, 75],
        "network AlgorithmReceive:eth0 Algorithm": [200, 0],  # then it began again
        "gpu gpu0 GPUUtilization": [10, 20, 30, 40],
        "gpu gpu0 GPUMemoryUtilization": [25, 25, 50, 50],
    }
    assert [event.timestamp for event in found] == sorted(event.timestamp for event in found)


def test_golden_samples_are_columns() -> None:
    golden = Path(__file__).parents[3] / "testdata" / "format" / "v1.1" / "run"
    (host,) = open_trial(golden).profile("GLOBAL").hosts
    assert (host.number, host.units) == (3, {"cpu.busy": "s", "gpu.0.memory.used": "bytes"})
    assert host.document("host") == {"name": "golden"}
    assert list(host.rates("cpu.busy")["value"]) == pytest.approx([0.9] * 5)
    with pytest.raises(InvalidArgumentError, match="columns"):
        host.rates("gpu.0.memory.used")
    with pytest.raises(NotFoundError):
        host.columns("cpu.bussy")


def test_a_job_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="aws s3 sync"):
        TrainingJob(str(tmp_path / "my-training-job"))


# ---- hooks ------------------------------------------------------------------------------------------------------


def test_a_hook_writes_timelines_and_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from luff.compat.smdebug.profiler.analysis.python_profile_analysis import cProfileAnalysis
    from luff.compat.smdebug.pytorch import Hook, modes

    configured(
        tmp_path,
        monkeypatch,
        DetailedProfilingConfig='{"StartStep": 2, "NumSteps": 1}',
        PythonProfilingConfig='{"StartStep": 1, "NumSteps": 2, "cProfileTimer": "total_time"}',
    )

    def train(hooked: bool) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hooked:
            hook = Hook(out_dir=str(tmp_path / "tensors"))
            hook.register_module(model)
            hook.set_mode(modes.TRAIN)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        if hooked:
            hook.close()
        return model[0].weight.detach().clone()

    assert torch.equal(train(False), train(True))
    events = LocalAlgorithmMetricsReader(str(tmp_path / "out")).get_events(0, 4e15)
    steps = [event.event_args["step_num"] for event in events if event.event_phase == "Step:ModeKeys.TRAIN"]
    assert steps == ["0", "1", "2", "3", "4"]
    assert sum(event.event_phase == "Forward" for event in events) == 5
    inner = [event for event in events if event.event_phase == "Forward-SubModuleInternal"]
    assert [(event.event_name, event.event_args["step_num"]) for event in inner] == [
        ("0", "2"),
        ("1", "2"),
        ("2", "2"),
    ]
    analysis = cProfileAnalysis(str(tmp_path / "out" / "framework" / "pytorch" / "cprofile"))
    assert analysis.fetch_pre_step_zero_profile_stats() is not None
    found = analysis.fetch_profile_stats_by_step(1, 2)
    assert any("forward" in one.function_name for one in found.function_stats_list)


def test_another_profiler_is_left_alone(tmp_path: Path) -> None:
    from luff.compat.smdebug.profiler.python_profile_utils import StepPhase, cProfileTimer
    from luff.compat.smdebug.profiler.python_profiler import cProfilePythonProfiler

    def mine(*_: Any) -> None:
        pass

    profiler = cProfilePythonProfiler(str(tmp_path), None, cProfileTimer.TOTAL_TIME)
    sys.setprofile(mine)
    try:
        profiler.start_profiling(StepPhase.START)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    profiler.stop_profiling(StepPhase.END)
    assert list(tmp_path.iterdir()) == []
