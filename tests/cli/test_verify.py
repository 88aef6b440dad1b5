"""`luff verify` names each damage by file, offset and what is lost; everything else of the run can still be read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import luff as library
import numpy as np
import pytest

from .conftest import Command

WEIGHT = "Sequential_0.weight"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    path = tmp_path / "run"
    shutil.copytree(run, path)
    return path


def _flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def _readable(run: Path) -> int:
    """Values of the weight that can be read; each is right."""
    trial = library.open_trial(run)
    good = 0
    for step in trial.steps():
        try:
            value = trial.tensor(WEIGHT).value(step)
        except library.LuffError:
            continue
        assert np.isfinite(value).all()
        good += 1
    return good


def test_clean(luff: Command, run: Path) -> None:
    done = luff("verify", run)
    assert done.code == 0
    assert done.out.startswith("clean: ")
    report = json.loads(luff("verify", run, "--json").out)
    assert report["clean"] is True
    assert report["damage"] == []
    assert report["rows"] == 62


def test_flipped_byte_of_a_value(luff: Command, copy: Path, run: Path) -> None:
    file = copy / "w0000" / "d-000001.lfd"
    _flip(file, 4096 + 200)  # inside the second chunk
    done = luff("verify", copy)
    assert done.code == 1
    line = next(line for line in done.out.splitlines() if line.startswith("damage: "))
    assert re.match(r"damage: \S*d-000001\.lfd at byte \d+: .*Sequential_\d\.weight", line), line
    assert _readable(run) - 1 <= _readable(copy) <= _readable(run)


def test_flipped_byte_of_metadata(luff: Command, copy: Path) -> None:
    file = copy / "w0000" / "m-000001.lfm"
    _flip(file, 4096 + 200)
    done = luff("verify", copy)
    assert done.code == 1
    assert re.search(r"damage: \S*m-000001\.lfm at byte \d+: ", done.out)
    _readable(copy)


@pytest.mark.parametrize("name", ["d-000001.lfd", "m-000001.lfm"])
def test_cut_file(luff: Command, copy: Path, run: Path, name: str) -> None:
    file = copy / "w0000" / name
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    done = luff("verify", copy)
    assert done.code == 1
    assert name in done.out
    assert 0 < _readable(copy) < _readable(run)


def test_missing_file(luff: Command, copy: Path) -> None:
    (copy / "w0000" / "d-000001.lfd").unlink()
    done = luff("verify", copy)
    assert done.code == 1
    assert "d-000001.lfd" in done.out
    assert _readable(copy) == 0
    columns = library.open_trial(copy).tensor(WEIGHT).summaries()
    assert len(columns["l2"]) == 20  # statistics do not need it


def test_what_is_no_run(luff: Command, tmp_path: Path) -> None:
    assert luff("verify", tmp_path).code == 2
