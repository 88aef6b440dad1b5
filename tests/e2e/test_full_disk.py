"""A disk that really is full: the training continues, the run says what it lost, and the rest stays readable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import luff as library
import numpy as np
import pytest

from .conftest import Luff

_SCRIPT = Path(__file__).parent / "scripts" / "steps.py"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_training_goes_on_when_the_disk_is_full(luff: Luff, small_disk: Path, tmp_path: Path) -> None:
    config = tmp_path / "luff.toml"
    config.write_text("[capture]\nsave_all = true\nsave_interval = 1\nmax_overhead = 0\n")
    arguments = ("--steps", "1500", "--interval", "0", "--outputs", "64")
    command = [sys.executable, str(_SCRIPT), *arguments, "--run", str(tmp_path / "alone")]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    run = small_disk / "run"
    code, out, err = luff(
        "run", "--run", str(run), "--config", str(config), "--", sys.executable, str(_SCRIPT), *arguments
    )  # fmt: skip
    assert code == 0, err
    assert out == alone.stdout  # the same losses, to the last printed digit
    assert "Traceback" not in err
    assert re.search(
        r"luff: (\d+ of the )?steps \d+ to 1499 are not in the run, and no rule saw them: disk full", err
    ), err

    shown = json.loads(luff("show", str(run), "--json")[1])
    assert shown["outcome"] == "completed"
    full = [gap for gap in shown["gaps"] if gap["reason"] == "disk full"]
    assert full, shown["gaps"]
    assert max(gap["last_step"] for gap in full) == 1499  # everything that is missing is reported
    assert not (run / "w0000" / "reserve").exists()
    trial = library.open_trial(run)
    name = trial.tensors(regex=r"^dense\.weight$")[0]
    steps = trial.tensor(name).steps()
    assert len(steps) > 100
    first = trial.tensor(name).value(steps[0])
    assert first.shape == (8, 64)
    assert np.isfinite(first).all()
