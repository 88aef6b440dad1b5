"""Reading runs that are not simply finished: live, resumed, stopped, failed, of two workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import luff as library
import pytest

from .conftest import Command, train

LOSS = "MSELoss_output_0"
SCRIPT = """
import sys
import luff.torch, torch
path, rank, world, steps, resume, first = sys.argv[1], *map(int, sys.argv[2:6]), int(sys.argv[6])
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_fn = torch.nn.MSELoss()
hook = luff.torch.attach(model, optimizer=optimizer, loss_fn=loss_fn, run=path, resume=bool(resume))
for step in range(steps):
    x = torch.randn(8, 4)
    loss_fn(model(x), x[:, :1] + rank).backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[7:] == ["live"]:
    print("there", flush=True)
    sys.stdin.read()
if sys.argv[7:] == ["fail"]:
    raise RuntimeError("a mistake of the script")
"""


def start(run: Path, *how: object, rank: int = 0, world: int = 1) -> subprocess.Popen[str]:
    """A small training as a process: steps, resume, first step, what it does at its end."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run), str(rank), str(world), *map(str, how)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end."""
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A run whose training waits after twelve steps."""
    process = start(tmp_path / "run", 12, 0, 0, "live")
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield tmp_path / "run"
    finish(process)


def test_live(luff: Command, live: Path) -> None:
    with library.open_trial(live) as trial:
        trial.wait_for_step(10, timeout_s=30)
    shown = json.loads(luff("show", live, "--json").out)
    assert shown["outcome"] == "running"
    assert shown["workers"][0]["alive"]
    assert shown["steps"] >= 11
    assert "  worker 0  alive, last step 1" in luff("show", live).out
    tail = luff("tail", live, "-n", 2, "--no-follow").out.splitlines()
    assert len(tail) == 3  # and no outcome: it goes on
    missing = luff("value", live, "Linear_weight", 500)
    assert missing.code == 2
    assert luff("verify", live).code == 0


def test_two_workers(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = [start(run, 6, 0, 0, rank=rank, world=2) for rank in range(2)]
    for process in processes:
        finish(process)
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["world_size"] == 2
    assert [worker["ended"] for worker in shown["workers"]] == [True, True]
    assert shown["steps"] == 6
    row = json.loads(luff("tail", run, "-n", 1, "--json").out)
    of_worker = [row["scalars_by_worker"][str(rank)][LOSS] for rank in range(2)]
    assert of_worker[0] != of_worker[1]
    assert row["scalars"][LOSS] == of_worker[0]
    trial = library.open_trial(run)
    for rank in range(2):
        value = luff("summary", run, LOSS, "--worker", rank, "--json").out
        assert json.loads(value)["scalars"]["value"][-1] == of_worker[rank]
        assert trial.scalars(LOSS, worker=rank)["value"][-1] == of_worker[rank]
    refused = luff("summary", run, LOSS, "--worker", 2)
    assert refused.code == 2
    assert "no worker 2" in refused.err


def test_resumed(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    finish(start(run, 5, 0, 0))
    finish(start(run, 4, 1, 5))
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "completed"
    assert shown["modes"]["TRAIN"] == {"steps": 9, "first": 0, "last": 8}
    scalars = json.loads(luff("summary", run, LOSS, "--json").out)["scalars"]
    assert scalars["step"] == list(range(9))
    assert len(luff("summary", run, "Linear_weight").out.splitlines()) == 1 + 9
    assert list(library.open_trial(run).tensor("Linear_weight").summaries()["step"]) == list(range(9))
    assert luff("verify", run).code == 0


def test_failed(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, 5, 0, 0, "fail")
    process.communicate(timeout=60)
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "failed"
    assert shown["why"]
    assert f"  outcome   failed: {shown['why']}" in luff("show", run).out.splitlines()


def test_stopped(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = Path(__file__).parents[1] / "e2e" / "scripts" / "train.py"
    done = luff(
        "run", "--run", run, "--on-finding", "stop", "--",
        sys.executable, script, "--steps", 4000, "--nan-at", 5,
    )  # fmt: skip
    assert done.code == 76, done.err
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "stopped"
    assert "NonFinite" in shown["why"]
    assert shown["finding_list"][0]["rule"] == "NonFinite"
    assert "STOP NonFinite" in luff("show", run).out


def test_an_empty_run(luff: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", steps=1)
    shutil.rmtree(tmp_path / "run" / "w0000")
    assert json.loads(luff("show", tmp_path / "run", "--json").out)["steps"] == 0
    assert luff("tensors", tmp_path / "run").out == ""
    assert luff("plot", tmp_path / "run").out.startswith("the run has neither losses nor gradients")
    assert luff("verify", tmp_path / "run").code == 0
