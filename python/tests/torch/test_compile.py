"""torch.compile does not notice Luff: same graphs, no break, no recompilation, and the same results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import luff.torch
import pytest
from luff.torch.loop._machine import Machine
from luff.torch.loop._writer import TensorWriter
from luff.torch.patches import _dynamo

HERE = Path(__file__).parent
KINDS = {
    "eager": ["wrapped", "in_place", "loss_inside", "container", "broken"],
    "aot_eager": ["wrapped", "in_place", "loss_inside"],
    "inductor": ["wrapped", "broken"],
}


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.thorough), "inductor"]
)
def test_one_graph_no_break_and_the_same_results(tmp_path, backend):
    if backend == "inductor" and shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler for inductor")
    (tmp_path / "runs").mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("LUFF_SESSION", None)
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_script.py"), backend, str(tmp_path / "runs"), *KINDS[backend]],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bare, seen = json.loads(done.stdout)
    for kind in KINDS[backend]:
        told = seen[kind].pop("seen")
        assert seen[kind].pop("errors") == {}
        assert seen[kind] == bare[kind], kind
        if kind not in ("container", "broken"):  # torch itself compiles these in pieces, or not at all
            assert (seen[kind]["graphs"], seen[kind]["breaks"]) == (1, 0), kind
        assert told["train_steps"] == 6
        assert told["gradients_equal"], kind
        assert told["compiled_gap"], kind


@pytest.mark.parametrize("kind", [luff.torch.Hook, Machine, TensorWriter])
def test_all_that_runs_in_a_step_is_left_out(kind):
    modules = [base.__module__ for base in kind.__mro__ if base.__module__.startswith("luff")]
    assert [module for module in modules if not module.startswith(_dynamo._PACKAGES)] == []
