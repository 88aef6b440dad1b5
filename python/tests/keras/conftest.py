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
HAS_KERAS = all(importlib.util.find_spec(name) is not None for name in ("keras", "tensorflow"))
collect_ignore_glob = [] if HAS_KERAS else ["test_*.py"]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)


@pytest.fixture(autouse=True)
def closed():
    """Makes sure that no hook of one test is alive in the next."""
    yield
    from luff.keras._hook import hooks

    for hook in hooks.living:
        hook.close()


@pytest.fixture
def data():
    """640 rows of digits and their classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x[:640] / 16).astype(np.float32), y[:640].astype(np.int32)


@pytest.fixture
def script(tmp_path):
    """Runs a script, given as text, in a process of its own; returns the finished process."""

    def run(text, *command, expect=0, **environment):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_BOOTSTRAP"
        }
        done = subprocess.run(
            [*command, sys.executable, "train.py"],
            cwd=tmp_path,
            env=inherited | {"HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expect, done.stderr + done.stdout
        return done

    return run


@pytest.fixture
def luff_run(script, tmp_path):
    """Runs a script, given as text, under `luff run`; returns the finished process and the trial."""
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def run(text, *options, expect=0, **environment):
        import luff

        command = (executable, "run", "--run", str(tmp_path / "run"), *options, "--")
        done = script(text, *command, expect=expect, **environment)
        assert "nothing was recorded" not in done.stderr
        return done, luff.open_trial(tmp_path / "run")

    return run
