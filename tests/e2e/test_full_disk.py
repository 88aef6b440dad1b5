"""A disk that really is full: the training continues, the run says what it lost, and the rest stays readable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    _host_is_readable(luff, run)
    trial = library.open_trial(run)
    name = trial.tensors(regex=r"^dense\.weight$")[0]
    steps = trial.tensor(name).steps()
    assert len(steps) > 100
    first = trial.tensor(name).value(steps[0])
    assert first.shape == (8, 64)
    assert np.isfinite(first).all()


def _host_is_readable(luff: Luff, run: Path) -> None:
    """The folder of the sampler, which met the same disk, holds what was written, and nothing else."""
    code, out, err = luff("verify", str(run))
    assert code == 0, out + err
    assert not list(run.glob("h[0-9]*/reserve"))
    code, out, err = luff("profile", str(run), "--json")
    assert code == 0, err
    for machine in json.loads(out)["machines"]:
        assert machine["seconds"] >= 0
        assert machine["sampler"]["lives"] <= 1  # 0: the disk was full before its first row


def test_a_sampler_that_finds_the_disk_full_waits_for_room(luff: Luff, small_disk: Path) -> None:
    """What the disk refuses waits in memory, or is a gap; what is written later is read."""
    run = small_disk / "run"
    script = (
        "import os, sys, time, numpy, luff.numpy\n"
        f"hook = luff.numpy.attach({{'w': numpy.ones(4)}}, run={str(run)!r}, profile='off')\n"
        "with hook.step() as step: step.loss(1.0)\n"
        "hook.flush(10.0)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
        "hook.close()\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        sampler = luff.start("_sample", str(run), "--hz", "10")
        _until(lambda: len(_seconds(luff, run)) == 1)
        before = _seconds(luff, run)[0]
        (small_disk / "filler").write_bytes(b"")
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass  # the disk is full
        time.sleep(2)  # two blocks of samples find no room
        (small_disk / "filler").unlink()
        _until(lambda: _seconds(luff, run)[0] > before + 3)  # looks may take as long as the machine is loaded
        sampler.terminate()
        out, err = sampler.communicate(timeout=60)
        assert sampler.returncode == 0, out + err
        assert out + err == ""
    finally:
        job.communicate("", timeout=60)
    assert job.returncode == 0
    _host_is_readable(luff, run)


def _seconds(luff: Luff, run: Path) -> list[float]:
    """Returns how long each machine was measured."""
    code, out, err = luff("profile", str(run), "--json")
    assert code == 0, err
    return [machine["seconds"] for machine in json.loads(out)["machines"]]


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
