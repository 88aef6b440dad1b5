from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
HAS_XGBOOST = importlib.util.find_spec("xgboost") is not None
collect_ignore_glob = [] if HAS_XGBOOST else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)


@pytest.fixture
def data():
    """Rows and targets: (X, y) of two classes."""
    random = np.random.RandomState(0)
    x = random.rand(1200, 8).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + 0.1 * random.randn(1200) > 0.3).astype(int)
    return x, y


@pytest.fixture
def sets(data):
    """A matrix to train on and one to evaluate on."""
    import xgboost as xgb

    x, y = data
    return xgb.DMatrix(x[:800], label=y[:800]), xgb.DMatrix(x[800:], label=y[800:])


@pytest.fixture
def luff_run(tmp_path):
    """`luff run` on a script given as text: exit code, output, trial."""
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def run(script, *options, expect=0):
        import luff

        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_BOOTSTRAP"
        }
        environment |= {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [
            executable,
            "run",
            "--run",
            str(tmp_path / "run"),
            *options,
            "--",
            sys.executable,
            "train.py",
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == expect, done.stderr + done.stdout
        assert "nothing was recorded" not in done.stderr
        return done, luff.open_trial(tmp_path / "run")

    return run
