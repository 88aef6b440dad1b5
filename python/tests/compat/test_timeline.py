"""Timelines written through the profiler's interface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from luff.compat.smdebug.core.tfevent.timeline_file_writer import TimelineFileWriter
from luff.compat.smdebug.profiler.profiler_config_parser import ProfilerConfigParser


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **parameters) -> ProfilerConfigParser:
    path = tmp_path / "profiler.json"
    path.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "Out"), **parameters}}))
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(path))
    return ProfilerConfigParser()


def test_events_are_a_json_array_named_after_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = TimelineFileWriter(configured(tmp_path, monkeypatch))
    writer.write_trace_events(1_600_000_000.0, "Training", "epoch", duration=2, step_num=4)
    writer.write_trace_events(1_600_000_001.5, "Training", "mark", phase="i")
    writer.close()
    (file,) = (tmp_path / "Out/framework/pevents/2020091312").iterdir()
    assert file.name.startswith("1600000002000000_")
    head, _, name, _, epoch, mark = json.loads(file.read_text())
    assert head["args"] == {"start_time_since_epoch_in_micros": 1_600_000_000_000_000}
    assert name["args"] == {"name": "Training"}
    assert (epoch["name"], epoch["ph"], epoch["ts"], epoch["dur"]) == ("epoch", "X", 0, 2_000_000)
    assert epoch["args"]["step_num"] == 4
    assert (mark["ph"], mark["ts"], mark["s"]) == ("i", 1_500_000, "t")


def test_a_full_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = TimelineFileWriter(configured(tmp_path, monkeypatch, RotateMaxFileSizeInBytes="800"))
    for second in range(20):
        writer.write_trace_events(1_600_000_000.0 + second, "Training", f"event{second}")
    writer.close()
    files = sorted((tmp_path / "Out").rglob("*.json"))
    names = [row["name"] for file in files for row in json.loads(file.read_text())]
    assert len(files) > 2
    assert [name for name in names if name.startswith("event")] == [f"event{second}" for second in range(20)]


def test_what_cannot_be_written_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = configured(tmp_path, monkeypatch, LocalPath="/dev/null/nowhere", FileOpenFailThreshold=2)
    writer = TimelineFileWriter(config)
    for _ in range(3):
        writer.write_trace_events(1.0, "Training", "event")
    writer.close()
    assert not writer._worker._healthy


def test_without_a_file_nothing_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(tmp_path / "nowhere.json"))
    assert not ProfilerConfigParser().profiling_enabled
    assert not configured(tmp_path, monkeypatch, LocalPath="x").config.local_path.startswith("/opt")
