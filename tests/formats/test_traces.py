"""What `luff export --to perfetto` and `--to chrome` write, read by Perfetto's own definition of its format and by a
JSON parser.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import luff as library
import numpy as np
import pytest

from .conftest import Command

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=%s)
loss_fn = torch.nn.MSELoss()
data = TensorDataset(torch.randn(160, 4), torch.randn(160, 1))
for _ in range(2):
    time.sleep(1.2)  # so that the machine was sampled, too
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss_fn(model(data.tensors[0]), data.tensors[1])
    model.train()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, luff: Command) -> Path:
    """A run with phases and a finding: its learning rate makes the loss infinite."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "train.py").write_text(SCRIPT % "1e6")
    assert luff("run", "--run", folder / "run", "--", sys.executable, folder / "train.py").code == 0
    return folder / "run"


def decoded(path: Path) -> list[dict[str, Any]]:
    """Returns the slices and instants of a trace, as Perfetto's documentation says how to read them: names by number,
    times as differences, tracks by default. Values of counters, which have no name, are left out.
    """
    trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = trace_pb2.Trace.FromString(path.read_bytes())
    state: dict[int, dict[str, Any]] = {}
    tracks: dict[int, Any] = {}
    open_slices: dict[int, list[dict[str, Any]]] = {}
    found = []
    for packet in trace.packet:
        own = state.setdefault(packet.trusted_packet_sequence_id, {"names": {}, "notes": {}, "kinds": {}})
        if packet.HasField("clock_snapshot"):
            own["clocks"] = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
            own["now"] = next((c.timestamp for c in own["clocks"].values() if c.is_incremental), None)
            assert packet.clock_snapshot.primary_trace_clock == 1  # Unix time
        if packet.sequence_flags & 1:
            own.update(names={}, notes={}, kinds={})
        if packet.HasField("trace_packet_defaults"):
            own["defaults"] = packet.trace_packet_defaults
        own["names"] |= {one.iid: one.name for one in packet.interned_data.event_names}
        own["notes"] |= {one.iid: one.name for one in packet.interned_data.debug_annotation_names}
        own["kinds"] |= {one.iid: one.name for one in packet.interned_data.event_categories}
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        assert packet.sequence_flags & 2
        event = packet.track_event
        if own["clocks"][own["defaults"].timestamp_clock_id].is_incremental:
            own["now"] += packet.timestamp
            at = own["now"]
        else:
            at = packet.timestamp
        track = event.track_uuid or own["defaults"].track_event_defaults.track_uuid
        stack = open_slices.setdefault(track, [])
        if event.type == event.TYPE_COUNTER:
            assert tracks[track].HasField("counter")
            continue
        if event.type == event.TYPE_SLICE_END:
            stack.pop()["end"] = at
            continue
        one = {
            "name": event.name or own["names"][event.name_iid],
            "kinds": [*event.categories, *(own["kinds"][iid] for iid in event.category_iids)],
            "begin": at,
            "depth": len(stack),
            "track": tracks[track],
            "notes": {
                own["notes"][note.name_iid]: getattr(note, note.WhichOneof("value"))
                for note in event.debug_annotations
            },
        }
        found.append(one)
        if event.type == event.TYPE_SLICE_BEGIN:
            stack.append(one)
    assert not any(open_slices.values())
    return found


def test_perfetto_shows_steps_with_their_phases(luff: Command, recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.pftrace"
    luff("export", recorded, out, "--to", "perfetto")
    events = decoded(out)
    steps = [one for one in events if one["kinds"] == ["step"]]
    phases = [one for one in events if one["kinds"] == ["phase"]]
    assert Counter(one["name"] for one in steps) == {"TRAIN step": 40, "EVAL step": 2}
    assert all(one["depth"] == 0 for one in steps)
    assert all(one["depth"] == 1 for one in phases)
    assert {"data_wait", "forward", "loss", "backward", "optimizer", "zero_grad"} <= {
        p["name"] for p in phases
    }
    assert {one["track"].thread.thread_name for one in steps} == {"training thread"}

    profile = library.open_trial(recorded).profile("GLOBAL")
    assert [one["end"] - one["begin"] for one in steps] == list(np.rint(profile.steps["wall"] * 1e9))
    assert [one["notes"]["global step"] for one in steps] == list(profile.steps["step"])
    for name, seconds in profile.phases.items():
        drawn = sum(one["end"] - one["begin"] for one in phases if one["name"] == name)
        assert name == "other" or drawn == pytest.approx(np.nansum(seconds) * 1e9, abs=10)


TRACED = """
import sys
import luff, luff.torch, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hook = luff.torch.attach(model, run=sys.argv[1], rules=False)
for i in range(8):
    if i in (2, 5):
        assert luff.trace(2) == ""
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
hook.close()
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which steps 2, 3, 5 and 6 were traced."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "train.py").write_text(TRACED)
    subprocess.run([sys.executable, "train.py", "run"], cwd=folder, timeout=120, check=True)
    return folder / "run"


def test_operators_of_traced_steps_lie_in_them_on_one_clock(
    luff: Command, traced: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace.pftrace"
    said = luff("export", traced, out, "--to", "perfetto")
    assert "2 traces of operators" in said.out
    events = decoded(out)
    steps = [one for one in events if one["kinds"] == ["step"]]
    operators = [one for one in events if one["kinds"] == ["cpu_op"]]
    tracks = {one["track"].name for one in operators}
    assert {"operators, step 2", "operators, step 5"} <= tracks
    slack = 2_000_000  # Kineto counts in cycles of the processor
    for first in (2, 5):
        own = [one for one in operators if one["track"].name == f"operators, step {first}"]
        assert min(one["begin"] for one in own) >= steps[first]["begin"] - slack
        assert max(one["end"] for one in own) <= steps[first + 2]["end"] + slack
    products = [one for one in operators if one["name"] == "aten::addmm"]
    assert len(products) == 8  # two layers, four steps
    linear = next(one for one in operators if one["name"] == "aten::linear")
    assert any(linear["begin"] <= one["begin"] <= one["end"] <= linear["end"] for one in products)

    out = tmp_path / "trace.json.gz"
    luff("export", traced, out, "--to", "chrome")
    drawn = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    shown = sorted((e["name"], round(e["ts"] * 1e3)) for e in drawn if e.get("cat") == "cpu_op")
    assert len(shown) == len(operators)
    assert [name for name, _ in shown].count("aten::addmm") == 8
    assert {e["tid"] for e in drawn if e.get("cat") == "cpu_op"}.isdisjoint(
        {e["tid"] for e in drawn if e.get("cat") == "step"}
    )


def test_only_traces_of_the_steps_that_are_drawn(luff: Command, traced: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.pftrace"
    assert "1 trace of operators" in luff("export", traced, out, "--to", "perfetto", "--steps", "4:6").out
    assert {one["track"].name for one in decoded(out) if one["kinds"] == ["cpu_op"]} == {"operators, step 5"}


def test_a_broken_trace_is_left_out_and_said(luff: Command, traced: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(traced, run)
    broken = sorted((run / "w0000" / "traces").iterdir())[0]
    broken.write_text(broken.read_text()[:1000])
    said = luff("export", run, tmp_path / "out.pftrace", "--to", "perfetto")
    assert "1 trace of operators" in said.out
    assert "the trace of step 2 of rank 0 is left out" in said.err
    assert [one for one in decoded(tmp_path / "out.pftrace") if one["kinds"] == ["step"]]


def test_perfetto_shows_findings(luff: Command, recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.pftrace"
    luff("export", recorded, out, "--to", "perfetto")
    marks = [one for one in decoded(out) if one["kinds"] == ["finding"]]
    kept = library.open_trial(recorded).findings()
    assert kept
    assert [mark["notes"]["what"] for mark in marks] == [finding["what"] for finding in kept]
    assert marks[0]["track"].name == "findings"


def test_chrome_has_the_steps_that_are_asked_for(luff: Command, recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    luff("export", recorded, out, "--to", "chrome", "--steps", "5:8")
    trace = json.loads(gzip.decompress(out.read_bytes()))
    steps = [one for one in trace["traceEvents"] if one.get("cat") == "step"]
    assert [one["args"]["step"] for one in steps] == [5, 6, 7, 8]
    for step in steps:
        inside = [
            one
            for one in trace["traceEvents"]
            if one.get("cat") == "phase" and step["ts"] <= one["ts"] < step["ts"] + step["dur"]
        ]
        assert inside
        assert sum(one["dur"] for one in inside) <= step["dur"] + 1
    # What Python's gzip reads, the tool reads, too.
    assert subprocess.run(["gzip", "-t", out], check=False).returncode == 0


def test_a_file_is_replaced_on_request_only(luff: Command, recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.pftrace"
    out.write_text("mine")
    done = luff("export", recorded, out, "--to", "perfetto")
    assert done.code == 2
    assert str(out) in done.err
    assert out.read_text() == "mine"
    luff("export", recorded, out, "--to", "perfetto", "--force")
    assert decoded(out)


def test_wrong_choices_say_what_is_right(luff: Command, recorded: Path, tmp_path: Path) -> None:
    for options, words in (
        (["--steps", "7"], "FROM:TO"),
        (["--steps", "900:"], "no phases"),
        (["--tensors", "x"], "where the time went"),
    ):
        done = luff("export", recorded, tmp_path / "x", "--to", "perfetto", *options)
        assert done.code == 2
        assert words in done.err
        assert not (tmp_path / "x").exists()


def test_pandas_shows_the_columns(recorded: Path) -> None:
    frame = library.open_trial(recorded).profile().to_pandas()
    assert len(frame) == 40
    assert {"step", "wall", "data_wait", "forward"} <= set(frame.columns)
