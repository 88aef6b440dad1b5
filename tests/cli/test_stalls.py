"""Where a training stands: real hangs, a loader that hangs, a rank that is missing, and lines of long waits."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Job

torch = pytest.importorskip("torch")

START = """
import ctypes, os, sys, threading, time
import torch, luff.torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hook = luff.torch.attach(model, run=sys.argv[1], stalled_after_s=1, rules=False)

def step(x=torch.ones(2, 4)):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()

for _ in range(3):
    step()
"""
# Without PyTorch: its import would take most of the time of these tests.
PLAIN = """
import ctypes, os, sys, threading, time
import luff.numpy

hook = luff.numpy.attach({}, run=sys.argv[1], stalled_after_s=1, rules=False)

def step():
    with hook.step() as one:
        one.loss(1.0)

for _ in range(3):
    step()
"""
HANGS = {
    "lock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "lock or another thread (futex)"),
    "event": ("threading.Event().wait()", "in threading.py"),
    "sleep": ("time.sleep(600)", "sleeps (clock_nanosleep)"),
    "fifo": ("os.mkfifo('pipe'); open('pipe').read()", "waits for a file to open (openat)"),
    "pipe": ("os.read(os.pipe()[0], 1)", "waits in read() of pipe:["),
    "read": ("os.mkfifo('p'); f = os.open('p', os.O_RDWR); os.read(f, 1)", "waits in read() of {folder}/p"),
    "gil": ("ctypes.PyDLL(None).usleep(600_000_000)", "holds Python's lock (GIL)"),
    "computes": ("while True: pass", "runs"),
}


def profile(luff: Command, run: Path, enough: Callable[[Any], bool], job: Job) -> Any:
    """Waits until what `luff profile --json` says is enough."""
    until = time.monotonic() + 60
    done = None
    while time.monotonic() < until:
        assert job.process.poll() is None, job.err.read_text()
        if (run / "run.json").exists():
            done = luff("profile", run, "--json")
            if done.code == 0 and enough(json.loads(done.out)):
                return json.loads(done.out)
        time.sleep(0.2)
    raise AssertionError(done)


def stands(waits: str, place: str = "", after_step: int = 2) -> Callable[[Any], bool]:
    """Returns what says whether a training stands where it should: on a busy machine a step, or the way from the last
    one to the hang, may take a second, too, and is told until the next look.
    """

    def enough(told: Any) -> bool:
        return any(
            one["threads"]
            and one["after_step"] == after_step
            and waits in one["waits"]
            and place in one["stands"]
            for one in told["stalls"][:1]
        )

    return enough


@pytest.mark.parametrize("kind", HANGS)
def test_the_line_of_a_hang_and_what_it_waits_for(
    kind: str, luff: Command, jobs: list[Job], tmp_path: Path
) -> None:
    code, waits = HANGS[kind]
    source = PLAIN + f"\ndef hang():\n    {code}\n\nhang()\n"
    job = Job(tmp_path, source)
    jobs.append(job)
    place = f"train.py:{source[: source.index(code)].count(chr(10)) + 1} hang"
    waits = waits.format(folder=tmp_path)
    (stall,) = profile(luff, tmp_path / "run", stands(waits, place), job)["stalls"]
    assert stall["stands"].startswith(place), stall["stands"]
    assert stall["seconds"] >= 1 and not stall["over"]
    thread = stall["threads"][0]
    assert thread["trains"]
    assert [(f["file"], f["function"]) for f in thread["frames"] if f["own"]] == [
        (str(tmp_path / "train.py"), "hang"),
        (str(tmp_path / "train.py"), "<module>"),
    ]
    shown = luff("profile", tmp_path / "run").out
    assert shown.startswith("the training stands still for at least"), shown
    assert f"> {tmp_path}/train.py:" in shown
    assert job.err.read_text() == ""


def test_a_stand_that_ends_is_over_and_harms_nothing(luff: Command, tmp_path: Path) -> None:
    source = PLAIN + "\ntime.sleep(2.5)\nstep()\nhook.close()\n"
    (tmp_path / "train.py").write_text(source)
    words = [sys.executable, "train.py", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (stall,) = json.loads(luff("profile", tmp_path / "run", "--json").out)["stalls"]
    assert stall["over"] and stall["after_step"] == 2
    assert "once stood still" in luff("profile", tmp_path / "run").out
    assert luff("verify", tmp_path / "run").code == 0


def test_a_process_of_a_loader_is_named_with_its_line(luff: Command, jobs: list[Job], tmp_path: Path) -> None:
    source = START + textwrap.dedent("""
        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                if i == 3:
                    os.read(pipe[0], 1)
                return torch.ones(4)

        pipe = os.pipe()
        for x in torch.utils.data.DataLoader(Samples(), num_workers=2):
            step(x)
    """)
    job = Job(tmp_path, source)
    jobs.append(job)
    # Three steps before, and three batches.
    enough = stands("waits for a batch of a DataLoader", after_step=5)
    stall = profile(luff, tmp_path / "run", enough, job)["stalls"][0]
    if any(process["frames"] for process in stall["processes"]):
        assert "__getitem__ and waits in read() of pipe:[" in stall["waits"], stall["waits"]
    else:  # this system lets nobody read the memory of a child
        assert any(process["call"] == "read" for process in stall["processes"])


def test_ranks_wait_for_one_that_is_elsewhere(luff: Command, jobs: list[Job], tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    source = START.replace(
        "hook =",
        "import torch.distributed as dist\nmeet = 'file://' + os.path.abspath('meet')\n"
        "dist.init_process_group('gloo', init_method=meet, rank=int(os.environ['RANK']), world_size=2)\nhook =",
    ) + textwrap.dedent("""
        def elsewhere():
            time.sleep(600)

        if dist.get_rank() == 1:
            elsewhere()
        dist.all_reduce(torch.ones(3))
    """)
    for rank in "01":
        jobs.append(Job(tmp_path, source, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2"))
    waits = stands("waits in all_reduce of torch.distributed")
    said = "elsewhere, which sleeps"
    stalls = profile(
        luff,
        tmp_path / "run",
        lambda told: waits(told) and said in (told["stalls"][0]["others"] or ""),
        jobs[0],
    )["stalls"]
    assert stalls[0]["others"].startswith("rank 1 is elsewhere: in train.py:"), stalls[0]["others"]
    line = "StalledTrainingRule:threshold=1.5"
    told = profile(luff, tmp_path / "run", lambda told: told["stalls"][0]["seconds"] > 3.5, jobs[0])
    assert told["stalls"][0]["looks"] >= 3 and told["stalls"][0]["same"] >= 3
    found = json.loads(luff("check", tmp_path / "run", "--rules", line, "--json").out)
    why = json.dumps(found)
    assert "waits in all_reduce of torch.distributed" in why, why
    assert "rank 1 is elsewhere: in train.py:" in why, why


def test_lines_of_long_waits(luff: Command, tmp_path: Path) -> None:
    source = START + textwrap.dedent("""
        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 60

            def __getitem__(self, i):
                time.sleep(0.045)
                return torch.ones(4)

        def log_images():
            time.sleep(0.09)

        for x in torch.utils.data.DataLoader(Samples()):
            step(x)
            log_images()
        hook.close()
    """)
    (tmp_path / "train.py").write_text(source)
    words = [sys.executable, "train.py", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = json.loads(luff("profile", tmp_path / "run", "--json").out)["lines"]
    by_phase = {phase: [one for one in lines if one["phase"] == phase] for phase in ("other", "data_wait")}
    sleeps = [n + 1 for n, text in enumerate(source.split("\n")) if "time.sleep(0.0" in text]
    data, log = by_phase["data_wait"][0], by_phase["other"][0]
    assert (data["line"], data["function"].rsplit(".", 1)[-1]) == (sleeps[0], "__getitem__")
    assert (log["line"], log["function"]) == (sleeps[1], "log_images")
    assert log["share"] > 0.5
    assert "log_images" in luff("profile", tmp_path / "run").out


def test_profile_off_looks_at_nothing(luff: Command, tmp_path: Path) -> None:
    source = (
        PLAIN.replace("rules=False", "rules=False, profile='off'")
        + "\ntime.sleep(2.5)\nstep()\nhook.close()\n"
    )
    (tmp_path / "train.py").write_text(source)
    subprocess.run([sys.executable, "train.py", "run"], cwd=tmp_path, timeout=120, check=True)
    assert json.loads(luff("profile", tmp_path / "run", "--json").out)["stalls"] == []
