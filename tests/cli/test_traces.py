"""Traces of a few steps: asked for inside and outside, the same steps in all ranks, no change of results, bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import luff as luff_package
import numpy as np
import pytest

from tests.cli.conftest import Command, Job

torch = pytest.importorskip("torch")

START = """
import hashlib, os, sys
import torch, luff, luff.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
hook = luff.torch.attach(model, run=sys.argv[1], rules=False)

def step():
    optimizer.zero_grad()
    loss = ((model(torch.randn(16, 32)) - 1) ** 2).mean()
    loss.backward()
    optimizer.step()

def result():
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(weights).hexdigest(), torch.rand(1).item(), "KINETO_LOG_LEVEL" in os.environ
"""
LOOP = """
for i in range(20):
    {code}
    step()
print(result())
"""


def train(folder: Path, code: str = "pass", **environment: str) -> str:
    """Runs a training in which `code` stands in the loop; returns what it prints."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(START + LOOP.format(code=code))
    done = subprocess.run(
        [sys.executable, "train.py", "run"], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def traces(luff: Command, run: Path, *words: str) -> list[Any]:
    done = luff("profile", run, "--json", *words)
    assert done.code == 0, done
    return json.loads(done.out)["traces"]


def test_a_trace_changes_no_result_and_says_where_the_time_went(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    traced = train(tmp_path / "traced", "if i == 7: assert luff.trace(3) == ''")
    assert traced == bare
    run = tmp_path / "traced" / "run"
    (trace,) = traces(luff, run)
    assert (trace["first_step"], trace["steps"], trace["refused"]) == (7, 3, None)
    # The step after them is the one in which the trace was written.
    assert list(luff_package.open_trial(str(run)).profile().steps["traced"].nonzero()[0]) == [7, 8, 9, 10]
    told = json.loads(luff("profile", run, "--json").out)
    assert (told["steps"], told["traced"]["steps"]) == (16, 4)
    assert "trace" not in {line["phase"] for line in told["phases"]}
    assert "left out: 4 TRAIN steps in which operators were traced" in luff("profile", run).out
    assert "were traced in all of these steps" in luff("profile", run, "--steps", "7:9").out
    summary = trace["summary"]
    by_name = {one["name"]: one for one in summary["operators"]}
    assert by_name["aten::addmm"]["calls"] == 6  # two layers, three steps
    assert 0 < by_name["aten::addmm"]["self"] <= by_name["aten::linear"]["total"]
    assert 0 < summary["in_operators"] <= summary["span"]
    assert summary["functions"] == [] and summary["device"]["span"] == 0
    path = Path(trace["file"])
    assert path.parent == run / "w0000" / "traces" and path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    facts = json.loads(path.read_text())["luff"]
    assert (facts["rank"], facts["world_size"], facts["first_step"]) == (0, 1, 7)
    assert facts["run"].endswith("/run")
    phases = luff_package.open_trial(str(run)).profile().phases
    assert 0 < np.nansum(phases["trace"][7:11]) == pytest.approx(np.nansum(phases["trace"]))
    shown = luff("profile", run).out
    assert "trace of TRAIN steps 7 to 9 (" in shown and "aten::addmm" in shown and str(path) in shown
    assert luff("verify", run).code == 0


def test_functions_of_python_on_request(luff: Command, tmp_path: Path) -> None:
    train(tmp_path, "if i == 7: luff.trace(2, stacks=True)")
    (trace,) = traces(luff, tmp_path / "run")
    assert any(one["name"].startswith("train.py(") for one in trace["summary"]["functions"])


def test_what_is_refused_says_why_and_harms_nothing(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    assert train(tmp_path / "nsys", "if i == 7: luff.trace()", NSYS_PROFILING_SESSION_ID="1") == bare
    (one,) = traces(luff, tmp_path / "nsys" / "run")
    assert one["file"] is None and "NSYS_PROFILING_SESSION_ID" in one["refused"]
    assert "no trace at TRAIN step 7: another profiler" in luff("profile", tmp_path / "nsys" / "run").out
    off = START.replace("rules=False", "rules=False, profile='off'") + "step(); print(luff.trace())"
    done = subprocess.run(
        [sys.executable, "-c", off, tmp_path / "off"], capture_output=True, text=True, check=True
    )
    assert done.stdout == 'profile = "off" in the configuration\n'
    assert "no trace at TRAIN step 1: profile" in luff("profile", tmp_path / "off").out
    profiler = "profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); profiler.start()"
    code = f"""if i == 7:
        os.environ['KINETO_LOG_LEVEL'] = '99'
        {profiler}
        assert 'profiler of PyTorch is active' in luff.trace()
    if i == 9:
        profiler.stop()
        del os.environ['KINETO_LOG_LEVEL']"""
    assert train(tmp_path / "own", code) == bare
    code = "if i == 7: assert luff.trace(9) == '' and 'being made' in luff.trace(2)"
    assert train(tmp_path / "twice", code) == bare
    assert [one["refused"] is None for one in traces(luff, tmp_path / "twice" / "run")] == [False, True]
    code = "if i in (3, 5): luff.trace(2)"
    train(tmp_path / "two", code)
    assert [one["first_step"] for one in traces(luff, tmp_path / "two" / "run")] == [3, 5]


def test_a_second_training_of_the_process_ends_the_trace_of_the_first(luff: Command, tmp_path: Path) -> None:
    code = """
for _ in range(3): step()
assert hook.trace(9) == ''
step()
from luff import _tracer
_tracer._MOST_SECONDS = 0.0
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters())
other = luff.torch.attach(model, run=sys.argv[2], rules=False)
assert 'being made' in other.trace(1)
step(); step()
assert not torch._C._autograd._profiler_enabled() and other.trace(1) == ''
step()
"""
    words = [sys.executable, "-c", START + code, tmp_path / "first", tmp_path / "second"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [bool(one["file"]) for one in traces(luff, tmp_path / "first")] == [True]
    assert [bool(one["file"]) for one in traces(luff, tmp_path / "second")] == [False, True]


def test_steps_of_other_trainings_are_marked_while_one_is_traced(luff: Command, tmp_path: Path) -> None:
    code = """
other = torch.nn.Linear(32, 1)
others = torch.optim.SGD(other.parameters())
second = luff.torch.attach(other, run=sys.argv[2], rules=False)
def other_step():
    others.zero_grad()
    other(torch.randn(16, 32)).mean().backward()
    others.step()
for i in range(8):
    if i == 3: assert hook.trace(2) == ''
    step()
    other_step()
"""
    words = [sys.executable, "-c", START + code, tmp_path / "first", tmp_path / "second"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    marked = [
        list(luff_package.open_trial(str(tmp_path / name)).profile().steps["traced"].nonzero()[0])
        for name in ("first", "second")
    ]
    assert marked == [[3, 4, 5], [3, 4]]  # it is written after the first one's step 4
    assert traces(luff, tmp_path / "second") == []


def test_refusals_do_not_take_the_place_of_traces(luff: Command, tmp_path: Path) -> None:
    train(tmp_path, "for _ in range(9): luff.trace(1)")
    told = traces(luff, tmp_path / "run")
    files = {Path(one["file"]) for one in told if one["file"]}
    assert len(files) == 16 and files == set((tmp_path / "run" / "w0000" / "traces").iterdir())


def test_a_resumed_run_goes_on_with_its_traces(luff: Command, tmp_path: Path) -> None:
    code = """
hook.close()
for resumes in range(3):
    hook = luff.torch.attach(model, run=sys.argv[1], rules=False, resume=True)
    left = os.path.join(sys.argv[1], "w0000", "traces", "000000000-07.json.part.json")
    if resumes: open(left, "w").close()  # of a process that was killed
    for i in range(5):
        if i == 2: assert luff.trace(1) == ''
        step()
    assert hook._tracer._made == resumes + 1 and hook._tracer._bytes > 0 and not os.path.exists(left)
    hook.close()
"""
    words = [sys.executable, "-c", START + code, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = traces(luff, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "w0000" / "traces.json").read_text())
    assert len(kept["traces"]) == 3
    names = ["000000002-00.json", "000000007-01.json", "000000012-02.json"]
    assert [Path(one["file"]).name for one in told] == names  # none has taken the place of another
    assert all(Path(one["file"]).exists() for one in told)


def test_a_profiler_of_the_trainings_own_has_precedence(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    begin = "os.environ['KINETO_LOG_LEVEL'] = '99'; profiler = torch.profiler.profile"
    end = "profiler.stop(); assert profiler.key_averages(); del os.environ['KINETO_LOG_LEVEL']"
    code = f"""if i == 5: assert luff.trace(9) == ''
    if i == 7: {begin}(activities=[torch.profiler.ProfilerActivity.CPU]); profiler.start()
    if i == 9: {end}
    if i == 12: assert luff.trace(2) == ''"""
    assert train(tmp_path / "later", code) == bare
    told = traces(luff, tmp_path / "later" / "run")
    assert [(one["first_step"], one["steps"], one["refused"]) for one in told] == [
        (5, 2, None),
        (12, 2, None),
    ]
    code = f"""if i == 5: {begin}(schedule=lambda step: torch.profiler.ProfilerAction(min(step, 2))); profiler.start()
    if i == 6: profiler.step(); assert 'profiler of PyTorch is active' in luff.trace(2)  # it is prepared
    if i in (7, 8): profiler.step()
    if i == 9: {end}"""
    assert train(tmp_path / "prepared", code) == bare


def test_a_process_that_is_forked_while_a_trace_is_made_records_nothing(tmp_path: Path) -> None:
    code = """if i == 5:
        luff.trace(9, stacks=True)
        if os.fork() == 0:
            def resident(): return int(open('/proc/self/statm').read().split()[1]) >> 8
            torch.set_num_threads(1)
            value, before = torch.ones(3), resident()
            for _ in range(100_000): value.add(1)
            os._exit(1 if resident() - before > 50 or sys.getprofile() else 0)
        assert os.wait()[1] == 0"""
    train(tmp_path, code)


def test_a_trace_that_is_asked_for_while_the_run_stops_ends_with_it(
    luff: Command, jobs: list[Job], tmp_path: Path
) -> None:
    loop = """
try:
    while True:
        if hook.session is not None and hook.session.stop_state() and not asked: asked.append(luff.trace(10))
        step()
except luff.StopTraining:
    luff.trace(3)
    step()
    hook.close()
    with open("said", "w") as file: print(asked, torch._C._autograd._profiler_enabled(), luff.trace(3), file=file)
"""
    jobs.append(Job(tmp_path, START + "asked = []\n" + loop))
    run = tmp_path / "run"
    wait_for_steps(luff, run, "0")
    done = luff("stop", run, "--reason", "enough")
    assert done.code == 0, done
    jobs[0].process.wait(120)
    assert jobs[0].err.read_text() == ""
    said = (tmp_path / "said").read_text()
    assert said.startswith(("[''] False ", "[] False ")), said  # it may stop where it first hears of it
    assert said.endswith("is recorded\n")
    assert all(one["file"] for one in traces(luff, run))
    assert luff("verify", run).code == 0


def test_a_training_that_ends_meanwhile_ends_its_trace(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    assert train(tmp_path / "end", "if i == 18: luff.trace(10)") == bare
    (one,) = traces(luff, tmp_path / "end" / "run")
    assert one["file"] and 1 <= one["steps"] <= 2 and one["summary"]["operators"]


def test_forward_passes_that_train_nothing_do_not_trace_for_ever(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    for name, limit in (
        ("time", "_tracer._MOST_SECONDS = 0.0"),
        ("memory", "_tracer.resident_memory = lambda: 1 << 50"),
    ):
        code = f"""if i == 7:
        from luff import _tracer
        assert luff.trace(9) == ''
        model.eval()
        with torch.no_grad():
            for _ in range(3): model(torch.ones(1, 32))
            assert hook._tracer.active
            {limit}
            model(torch.ones(1, 32))
            assert not hook._tracer.active
        model.train()"""
        assert train(tmp_path / name, code) == bare
        run = tmp_path / name / "run"
        (one,) = traces(luff, run)
        assert one["file"] and (one["first_step"], one["steps"]) == (7, 0)
        assert one["summary"]["operators"]
        assert "trace of a part of TRAIN step 7" in luff("profile", run).out


def test_a_step_that_records_much_ends_its_trace(luff: Command, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare")
    # A node of the graph stands for ten events; a step has about five nodes, and is followed by one like it.
    code = """if i == 5:
        from luff import _tracer
        _tracer._MOST_EVENTS = 150
        assert luff.trace(9) == ''
    if i == 12:
        import time
        _tracer._MOST_EVENTS = 5_000
        assert luff.trace(9) == ''
        value, until = torch.ones(1, requires_grad=True), time.monotonic() + 60
        while hook._tracer.active and time.monotonic() < until: value * 1.0  # nothing that Luff sees
        assert not torch._C._autograd._profiler_enabled()"""
    assert train(tmp_path / "much", code) == bare
    steps, part = traces(luff, tmp_path / "much" / "run")
    assert steps["refused"] is None and steps["first_step"] == 5 and 1 <= steps["steps"] <= 2
    assert (part["refused"], part["first_step"], part["steps"]) == (None, 12, 0)
    assert part["summary"]["operators"]


def test_a_forward_pass_within_a_step_ends_a_trace_that_has_taken_long(tmp_path: Path) -> None:
    code = """if i == 5:
        import time
        from luff import _tracer
        assert luff.trace(9) == ''
        hook._tracer._ended.set()  # as in a thread of its own, which nobody can ask to look
        _tracer._MOST_SECONDS, until = 0.0, time.monotonic() + 60
        while hook._tracer.active and time.monotonic() < until: model(torch.ones(1, 32)).sum().backward()
        assert not torch._C._autograd._profiler_enabled()"""
    train(tmp_path, code)


def test_a_backward_pass_is_not_interrupted(luff: Command, tmp_path: Path) -> None:
    function = """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, gradient):
        until = time.monotonic() + 1.2  # two looks
        while time.monotonic() < until: pass
        hook._tracer._looked = 0.0
        hook.look_at_trace()
        assert hook._tracer.active
        return gradient
"""
    code = """if i == 5:
        import time
        from luff import _tracer
        exec(function)
        assert luff.trace(9) == ''
        _tracer._MOST_SECONDS, usual = 0.0, _tracer._MOST_SECONDS
        Slow.apply(torch.ones(2, requires_grad=True)).sum().backward()
        until = time.monotonic() + 60
        while hook._tracer.active and time.monotonic() < until: pass
        assert not torch._C._autograd._profiler_enabled()
        _tracer._MOST_SECONDS = usual
        assert luff.trace(1) == ''"""
    bare = train(tmp_path / "bare")
    assert train(tmp_path / "run", code.replace("function", repr(function))) == bare
    first, second = traces(luff, tmp_path / "run" / "run")
    assert (first["refused"], second["refused"], second["steps"]) == (None, None, 1)


def test_a_compilation_ends_a_trace_with_functions_of_python(luff: Command, tmp_path: Path) -> None:
    code = """if i == 5:
        assert luff.trace(9, stacks=True) == ''
        torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))
        assert not torch._C._autograd._profiler_enabled()"""
    train(tmp_path, code)
    (one,) = traces(luff, tmp_path / "run")
    assert one["file"] and (one["first_step"], one["steps"]) == (5, 0)


def test_memory_that_each_step_takes_ends_a_trace(luff: Command, tmp_path: Path) -> None:
    code = """if i == 5:
        from luff import _tracer
        _tracer.resident_memory = lambda: 1 + (hook._tracer._done * 100 << 20)
        _tracer._available = lambda: 1 << 50
        assert luff.trace(9) == ''"""
    train(tmp_path, code)
    (one,) = traces(luff, tmp_path / "run")
    assert one["file"] and (one["first_step"], one["steps"]) == (5, 4)  # 300 MiB more than after its first


def test_a_trace_that_others_have_exchanged_is_an_error_in_words(luff: Command, tmp_path: Path) -> None:
    train(tmp_path, "if i == 7: luff.trace(1)")
    path = Path(traces(luff, tmp_path / "run")[0]["file"])
    path.write_bytes(path.read_bytes()[:5000])
    done = luff("profile", tmp_path / "run")
    assert done.code == 0 and "cannot be read" in done.out
    path.unlink()
    path.symlink_to("/etc/passwd")
    done = luff("profile", tmp_path / "run")
    assert done.code == 0 and "root:" not in done.out + done.err


def wait_for_steps(luff: Command, run: Path, ranks: str) -> None:
    """Waits until each rank has ended a step: before, it has a file, and has not yet said what it takes part in."""

    def trains(rank: str) -> bool:
        if not (run / f"w000{rank}" / "live").exists():
            return False
        shown = luff("show", run, "--json")
        workers = json.loads(shown.out)["workers"] if shown.code == 0 else []
        return any(one["worker"] == int(rank) and one["last_step"] >= 0 for one in workers)

    until = time.monotonic() + 60
    while time.monotonic() < until and not all(map(trains, ranks)):
        time.sleep(0.1)


def test_all_ranks_trace_the_same_steps_when_asked_from_outside(
    luff: Command,
    jobs: list[Job],
    tmp_path: Path,
) -> None:
    loop = "\nwhile not os.path.exists('enough'):\n    step()\n"
    for rank in "01":
        jobs.append(Job(tmp_path, START + loop, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2"))
    run = tmp_path / "run"
    wait_for_steps(luff, run, "01")
    done = luff("trace", run, "--steps", "2", "--reason", "slow")
    assert done.code == 0 and "the next steps are traced" in done.err, (done, jobs[0].err.read_text())
    found = [one for rank in "01" for one in traces(luff, run, "--rank", rank)]
    for one in found:
        assert one["file"] in done.err, done  # it waits for them
    (tmp_path / "enough").touch()
    assert [job.process.wait(60) for job in jobs] == [0, 0]
    assert [job.err.read_text() for job in jobs] == ["", ""]
    assert len(found) == 2 and found[0]["first_step"] == found[1]["first_step"] > 0
    assert [one["steps"] for one in found] == [2, 2]
    facts = [json.loads(Path(one["file"]).read_text())["luff"] for one in found]
    assert [one["rank"] for one in facts] == [0, 1]


SLOW = """
import glob, itertools, os, sys, time
import torch

class Data(torch.utils.data.IterableDataset):
    def __iter__(self): return (self[i] for i in itertools.count())
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.randn(8), torch.ones(1)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until, left = time.monotonic() + 120, 50  # steps after there is a file of that name
for x, y in torch.utils.data.DataLoader(Data()):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    left -= any(os.path.getsize(file) for file in glob.glob(sys.argv[1]))
    if not left or time.monotonic() > until: break
"""
ACTION = """
[[action]]
kind = "trace"
rules = ["InputBound"]
steps = 2
share = {share}
"""


@pytest.mark.parametrize("share", [1, 0.001])
def test_an_action_traces_once_because_of_a_finding(luff: Command, tmp_path: Path, share: float) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    (tmp_path / "luff.toml").write_text(ACTION.format(share=share))
    run = tmp_path / "run"
    rules = "InputBound:window=10:first=5:seconds=0.1:worth=0.001"
    words = ["run", "--run", run, "--rules", rules, "--config", tmp_path / "luff.toml", "--", sys.executable]
    awaited = "w0000/traces/*-??.json" if share == 1 else "rules/*/findings.jsonl"
    done = luff(*words, tmp_path / "train.py", run / awaited)
    assert done.code == 0, done
    (finding,) = json.loads(luff("show", run, "--json").out)["finding_list"]
    made = traces(luff, run)
    if share < 1:  # a run of 8 s may spend 8 ms, one of 120 s less than a trace takes at first
        assert made == [] and finding["traces"] == []
        audit = run / "rules" / "luff" / "actions.jsonl"
        assert not audit.exists() or "begun" not in audit.read_text()
        return
    (trace,) = made
    assert (trace["finding"], trace["rule"], trace["steps"]) == (finding["id"], "InputBound", 2), done.err
    assert finding["traces"] == [trace["file"]]
    assert f"traced: {trace['file']}" in luff("show", run).out
    assert "asked for by an action, because of InputBound" in luff("profile", run).out
    assert "luff: trace ('trace') carried out after " in done.err


def test_a_trace_that_is_not_made_in_time_is_no_success(
    luff: Command, jobs: list[Job], tmp_path: Path
) -> None:
    loop = """
import time
while hook._tracer is None: step()
while not os.path.exists('enough'): time.sleep(0.01)  # no step ends any more
"""
    jobs.append(Job(tmp_path, START + loop))
    run = tmp_path / "run"
    wait_for_steps(luff, run, "0")
    done = luff("trace", run, "--json", "--wait-s", "15")
    told = json.loads(done.out)
    assert (told["state"], told["traces"]) == ("done", [{"worker": 0, "file": None, "refused": None}]), done
    assert done.code == 1
    (tmp_path / "enough").touch()
    assert jobs[0].process.wait(60) == 0


def test_mistakes_are_told(luff: Command, tmp_path: Path) -> None:
    train(tmp_path)
    done = luff("trace", tmp_path / "run")
    assert done.code == 2 and "no process trains into this run" in done.err
    assert luff("trace", tmp_path / "run", "--steps", "99").code == 2
    import luff as package

    for steps in (0, 11, 2.5, True):
        with pytest.raises(package.errors.InvalidArgumentError, match="steps"):
            package.trace(steps)  # type: ignore[arg-type]
