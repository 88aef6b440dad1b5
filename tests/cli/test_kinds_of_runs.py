"""Reads runs that are not simply finished: live, resumed, stopped, failed, or with two workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import luff as library
import pytest

from .conftest import Command, train

LOSS = "loss"
SCRIPT = Path(__file__).parents[1] / "e2e" / "scripts" / "steps.py"


def start(run: Path, steps: int, *options: str, rank: int = 0, world: int = 1) -> subprocess.Popen[str]:
    """Starts a small training as a process; it continues a run that exists."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--run", str(run), "--steps", str(steps), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    """Waits for the end of a training."""
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A run whose training waits after twelve steps."""
    reached, go = tmp_path / "reached", tmp_path / "go"
    process = start(tmp_path / "run", 12, "--wait-at", "11", "--reached", str(reached), "--go", str(go))
    while not reached.exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield tmp_path / "run"
    go.touch()
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
    assert len(tail) == 3  # without an outcome: the training is still running
    missing = luff("value", live, "dense.weight", 500)
    assert missing.code == 2
    assert luff("verify", live).code == 0


def test_two_workers(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = [start(run, 6, rank=rank, world=2) for rank in range(2)]
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
    finish(start(run, 5))
    finish(start(run, 4))
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "completed"
    assert shown["modes"]["TRAIN"] == {"steps": 9, "first": 0, "last": 8}
    scalars = json.loads(luff("summary", run, LOSS, "--json").out)["scalars"]
    assert scalars["step"] == list(range(9))
    assert len(luff("summary", run, "dense.weight").out.splitlines()) == 1 + 9
    assert list(library.open_trial(run).tensor("dense.weight").summaries()["step"]) == list(range(9))
    assert luff("verify", run).code == 0


def test_failed(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, 5, "--fail-at", "4")
    process.communicate(timeout=60)
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "failed"
    assert shown["why"]
    assert f"  outcome   failed: {shown['why']}" in luff("show", run).out.splitlines()


def test_stopped(luff: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = luff(
        "run", "--run", run, "--on-finding", "stop", "--",
        sys.executable, SCRIPT, "--steps", 10**6, "--nan-at", 5,
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
