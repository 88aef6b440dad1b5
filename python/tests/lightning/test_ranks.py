"""Two gloo processes, started in the way of each framework, under ``luff run`` without a change to the script."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff
import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("luff") is None, reason="the program luff is not on the path")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]


def start(framework, out, *arguments, before=(), port=0):
    """Trains until the end or a stop; returns the finished process."""
    launched = [] if framework == "lightning" else [*TORCHRUN, f"--master_port={port}"]
    env = {key: value for key, value in os.environ.items() if key != "LUFF_SESSION"}
    env |= {"RANKS_OUT": str(out), "OMP_NUM_THREADS": "1", "LUFF_HOME": str(out.parent / "home")}
    return subprocess.run(
        [*before, sys.executable, *launched, str(HERE / "ranks.py"), framework, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def results(out):
    return [Path(f"{out}.{rank}").read_text() for rank in (0, 1)]


def test_a_finding_ends_the_loops_of_both_ranks_after_the_same_step(tmp_path):
    run = tmp_path / "run"
    before = ["luff", "run", "--run", str(run), "--on-finding", "stop", "--rules", "GradientNotCleared", "--"]
    done = start("lightning", tmp_path / "out", "fault", before=before)
    assert done.returncode == 76, done.stderr
    assert not Path(f"{tmp_path / 'out'}.0").exists(), "StopTraining came after fit"
    with luff.open_trial(run) as trial:
        assert trial.outcome == "stopped"
        assert len(trial.workers()) == 2
        steps = trial.steps("TRAIN")
        losses = trial.tensor("CrossEntropyLoss_output_0")
        assert all(losses.workers(step) == [0, 1] for step in steps)
        evaluations = trial.steps("EVAL")
        assert evaluations, "the loss of an evaluation is seen through DDP's detour"
        assert all(losses.workers(step) == [0, 1] for step in evaluations)
        assert trial.problems() == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("framework", "port"), [("lightning", 0), ("transformers", 29611), ("accelerate", 29613)]
)
def test_two_ranks_compute_what_they_do_without(framework, port, tmp_path):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"no {framework}")
    run = tmp_path / "run"
    with ThreadPoolExecutor(2) as pool:
        bare = pool.submit(start, framework, tmp_path / "bare", port=port)
        seen = pool.submit(
            start,
            framework,
            tmp_path / "seen",
            before=["luff", "run", "--run", str(run), "--"],
            port=port + 1,
        )
        assert bare.result().returncode == 0, bare.result().stderr
        assert seen.result().returncode == 0, seen.result().stderr
    assert results(tmp_path / "seen") == results(tmp_path / "bare")
    with luff.open_trial(run) as trial:
        assert len(trial.workers()) == 2
        assert len(trial.steps("TRAIN")) >= 4
        assert [gap for gap in trial.gaps() if gap["reason"] == "hook_error"] == []
