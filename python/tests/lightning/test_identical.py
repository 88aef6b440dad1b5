"""Every way of training computes bit by bit what it computes without Luff, in scripts that never mention it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff
import pytest

HERE = Path(__file__).parent
PACKAGE = Path(luff.__file__).parent.parent  # location of the tested luff
sys.path.insert(0, str(HERE))
from ways import THOROUGH, WAYS  # noqa: E402


def trained(names, run=None):
    """Returns the results of the ways, run in a process of their own: bare, or as ``luff run`` starts it."""
    env = {
        key: value for key, value in os.environ.items() if key not in ("LUFF_SESSION", "PYTHONPATH", "RANK")
    }
    path = [str(PACKAGE)]
    if run is not None:
        env["LUFF_SESSION"] = json.dumps({"run": str(run), "resume": False, "config": {}})
        path.insert(0, str(Path(luff.__file__).resolve().parent / "_bootstrap"))
    env |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "ways.py"), *names],
        env=env,
        cwd=os.getcwd(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def both(names, run):
    with ThreadPoolExecutor(2) as pool:
        bare, seen = pool.map(lambda where: trained(names, where), (None, run))
    assert bare.pop("_luff") is None
    errors, steps = seen.pop("_luff")
    assert errors == {}
    return bare, seen, steps


def test_same_weights_losses_metrics_files_and_randomness(tmp_path):
    bare, seen, steps = both(list(WAYS), tmp_path / "run")
    assert seen == bare
    assert set(bare) == set(WAYS)
    assert steps["1"] > 100
    assert steps["3"] > 5
    with luff.open_trial(tmp_path / "run") as trial:
        assert len(trial.steps("TRAIN")) == steps["1"]
        assert trial.problems() == []


@pytest.mark.thorough
def test_as_many_compilations(tmp_path):
    bare, seen, _ = both(list(THOROUGH), tmp_path / "run")
    assert seen == bare
    assert all(stats["unique_graphs"] > 0 for *_, stats, _ in bare.values())
