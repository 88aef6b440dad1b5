from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if "XLA_FLAGS" not in os.environ and "jax" not in sys.modules:  # two devices, for sharded arrays
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
sys.path.insert(0, str(HERE))  # jax_cases
HAS_JAX = all(importlib.util.find_spec(name) is not None for name in ("jax", "optax", "flax"))
collect_ignore_glob = [] if HAS_JAX else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)


@pytest.fixture
def python(tmp_path):
    """Runs a script given as text; returns the finished process."""

    def run(script, *command, expect=0, **environment):
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_BOOTSTRAP"}
        clean |= {"HOME": str(tmp_path), **environment}
        done = subprocess.run(
            [*command, sys.executable, "-W", "error::UserWarning", "train.py"],
            cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done.stderr + done.stdout
        return done

    return run


@pytest.fixture
def luff_run(tmp_path, python):
    """Runs a script, given as text, under `luff run`; returns the finished process and the trial."""
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def run(script, *options, expect=0, **environment):
        import luff

        done = python(
            script, executable, "run", "--run", str(tmp_path / "run"), *options, "--",
            expect=expect, **environment,
        )  # fmt: skip
        assert "nothing was recorded" not in done.stderr
        assert "leaked" not in done.stderr
        return done, luff.open_trial(tmp_path / "run")

    return run
