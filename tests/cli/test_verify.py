"""`luff verify` reports each damage with file, offset and what is lost; everything else in the run stays readable."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import luff as library
import luff.testing as luff_testing
import numpy as np
import pytest

from .conftest import Command

WEIGHT = "Sequential_0.weight"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged by the test."""
    path = tmp_path / "run"
    shutil.copytree(run, path)
    return path


def _flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def _readable(run: Path) -> int:
    """Returns the number of readable values of the weight; checks that each is right."""
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
    assert len(columns["l2"]) == 20  # statistics do not need the value


def test_values_of_one_number_are_decoded_within_a_bound(luff: Command, tmp_path: Path) -> None:
    values = [np.full(50_000, step, np.float32) for step in range(1, 5)]
    luff_testing.trial({"w": values}, path=tmp_path / "run")
    done = luff("verify", tmp_path / "run")
    assert (done.code, "--max-bytes" in done.out) == (0, False), done.out
    done = luff("verify", tmp_path / "run", "--max-bytes", 2 * values[0].nbytes)
    assert done.code == 0
    assert "w0000: 2 values of one repeated number were checked as they are stored" in done.out
    assert "--max-bytes raises this" in done.out
    assert "--max-bytes" in luff("verify", "--help").out


def test_what_is_no_run(luff: Command, tmp_path: Path) -> None:
    assert luff("verify", tmp_path).code == 2


@pytest.fixture
def exported(luff: Command, run: Path, tmp_path: Path) -> Path:
    """The run in smdebug's layout, to be damaged by the test."""
    path = tmp_path / "smdebug"
    assert luff("export", run, path, "--to", "smdebug").code == 0
    return path


def test_a_directory_of_smdebug(luff: Command, exported: Path) -> None:
    done = luff("verify", exported)
    assert done.code == 0
    assert re.search(
        r"^clean: \d+ files, .* 22 steps, 1 workers, (\d+) values, \1 records checked$", done.out, re.M
    )
    report = json.loads(luff("verify", exported, "--json").out)
    assert report["clean"] is True
    assert report["format"] == "smdebug"
    assert report["records"] == report["values"] == report["records_without_checksum"]


def test_damage_in_a_directory_of_smdebug(luff: Command, exported: Path) -> None:
    before = _readable(exported)
    events = sorted((exported / "events").rglob("*.tfevents"))
    index = sorted((exported / "index").rglob("*.json"))
    _flip(events[3], 0)
    events[5].write_bytes(events[5].read_bytes()[:-7])
    events[7].unlink()
    index[9].write_bytes(index[9].read_bytes()[:50])
    done = luff("verify", exported)
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("damage: ")]
    places = [(events[3], r"0: .*record's length.*lost: value of"), (events[5], r"[1-9]\d*: .*the file is cut off"),
              (events[7], r"0: found no such file"), (index[9], r"50: found the end of the file")]  # fmt: skip
    assert len(lines) == len(places), done.out
    for line, (file, what) in zip(lines, places, strict=True):
        assert re.match(rf"damage: {file.relative_to(exported)} at byte {what}", line), line
        assert "copy the f" in line  # says what to do
    report = json.loads(luff("verify", exported, "--json").out)
    assert report["damage_count"] == 4
    assert [d["file"] for d in report["damage"]] == [str(f.relative_to(exported)) for f, _ in places]
    # The weight is lost at damaged steps only; all other values are present and right.
    assert before - 4 <= _readable(exported) < before
    assert luff("show", exported).code == 0


def test_a_damaged_or_empty_run_is_never_ok(luff: Command, copy: Path) -> None:
    assert luff("check", copy).out.splitlines()[-1].startswith("luff: ok: ")
    segment = next((copy / "w0000").glob("m-*.lfm"))
    whole = segment.read_bytes()
    for damage, verdict in (
        (lambda: _flip(segment, len(whole) // 3), "damaged"),
        (lambda: [_flip(segment, len(whole) * part // 16) for part in range(3, 16)], "damaged"),
        (lambda: segment.write_bytes(whole[: len(whole) // 2]), "damaged"),
        (lambda: segment.write_bytes(whole[:200]), "nothing recorded"),
        (lambda: shutil.rmtree(copy / "w0000"), "nothing recorded"),
    ):
        segment.write_bytes(whole)
        damage()
        done = luff("check", copy)
        assert done.code == 1, done.out
        lines = done.out.splitlines()
        assert lines[-1].startswith(f"luff: {verdict}: "), done.out
        if (copy / "w0000").exists():
            assert re.search(r"luff: the run is damaged: w0000/m-\S+ at byte \d+: ", done.out), done.out
    listed = luff("check", copy, "--json")
    assert (listed.code, listed.out) == (1, "")
    segment.parent.mkdir()
    segment.write_bytes(whole)
    _flip(segment, len(whole) // 3)
    listed = luff("check", copy, "--json")
    assert (listed.code, listed.out) == (1, "")
    assert listed.err.startswith("luff: the run is damaged: w0000/m-")
