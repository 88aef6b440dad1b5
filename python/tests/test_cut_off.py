"""A run whose files are cut off while another process reads it: lost values are errors, the rest stays readable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import luff
import numpy as np
import pytest
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

ELEMENTS = 40_000
STEPS = 5  # in each of two segments

# Reads everything, cuts the files off, and prints what is still readable of each half, and the errors.
READER = """
import os, sys
import luff

run, length, *names = sys.argv[1:]
with luff.open_trial(run) as trial:
    weight = trial.tensor("weight")

    def look():
        seen, told = [], []
        for step in trial.steps("TRAIN"):
            for read in (weight.value, weight.summary):
                try:
                    read(step, mode="TRAIN")
                    seen.append(step)
                except luff.errors.CorruptionError as error:
                    told.append(str(error))
        for read in (weight.summaries, weight.values, lambda: trial.scalars("loss"), trial.gaps, trial.refresh):
            try:
                read()
            except luff.errors.CorruptionError as error:
                told.append(str(error))
        return seen, told

    before = look()
    assert not before[1], before
    for name in names:
        path = os.path.join(run, "w0000", name)
        os.truncate(path, min(int(length), os.path.getsize(path)))
    seen, told = look()
    print(sorted(set(seen)))
    for line in told:
        print(line)
"""


def write(path: Path) -> None:
    """Writes two sealed segments, each with its own payload file."""
    options = {"save_all": True, "save_interval": 1, "max_overhead": 0}
    for part in range(2):
        hook = StepHook(choose_run(path, part > 0, make_config(None, options)))
        hook.open_now()
        for step in range(STEPS):
            hook.steps.begin(int(Mode.TRAIN))
            hook.steps.scalar("loss", float(step), int(Role.LOSS))
            hook.steps.array(
                "weight", np.arange(ELEMENTS, dtype=np.float32) + np.float32(step), int(Role.WEIGHT)
            )
            hook.steps.updated()
            hook.steps.end()
            hook.boundary()
        hook.close()


@pytest.mark.parametrize("length", [0, 100, 5000])
@pytest.mark.parametrize(
    "names", [("m-000001.lfm",), ("d-000001.lfd",), ("m-000001.lfm", "d-000001.lfd")], ids=", ".join
)
def test_files_that_are_cut_off_end_no_reader(tmp_path: Path, names: tuple[str, ...], length: int) -> None:
    run = tmp_path / "run"
    write(run)
    reader = subprocess.run(
        [sys.executable, "-c", READER, str(run), str(length), *names],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert reader.returncode == 0, reader.stderr
    steps, *told = reader.stdout.splitlines()
    assert set(range(STEPS, 2 * STEPS)) <= set(json.loads(steps))
    assert told
    for line in told:
        assert "cut off" in line
        assert "at byte" in line
        assert any(name in line for name in names), line


def test_a_file_that_is_put_back_is_read_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write(run)
    with luff.open_trial(str(run)) as trial:
        weight = trial.tensor("weight")
        weight.value(0, mode="TRAIN")
        path = run / "w0000" / "d-000001.lfd"
        whole = path.read_bytes()
        path.write_bytes(whole[:5000])
        with pytest.raises(luff.errors.CorruptionError, match=r"cut off.*put a whole copy of it back"):
            weight.value(1, mode="TRAIN")
        path.write_bytes(whole)
        np.testing.assert_array_equal(
            weight.value(1, mode="TRAIN"), np.arange(ELEMENTS, dtype=np.float32) + np.float32(1)
        )
