"""luff export and the live outputs of luff run, as far as no other program is needed to read them."""

from __future__ import annotations

import csv
import json
import shutil
import struct
from pathlib import Path

import luff as library
import numpy as np
import pytest

from .conftest import Command

WEIGHT, LOSS = "Sequential_0.weight", "MSELoss_output_0"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_holds_the_tables(luff: Command, run: Path, tmp_path: Path) -> None:
    done = luff("export", run, tmp_path / "csv", "--to", "csv")
    assert done.code == 0, done.err
    assert done.out.startswith("22 steps, ")
    trial = library.open_trial(run)
    summaries = [r for r in rows(tmp_path / "csv" / "summaries.csv") if r["tensor"] == WEIGHT]
    columns = trial.tensor(WEIGHT).summaries()
    assert [int(r["step"]) for r in summaries] == columns["step"].tolist()
    for name in ("min", "max", "mean", "std", "l2"):
        assert [float(r[name]) for r in summaries] == columns[name].tolist()
    scalars = [
        r for r in rows(tmp_path / "csv" / "scalars.csv") if r["tensor"] == LOSS and r["mode"] == "EVAL"
    ]
    assert [float(r["value"]) for r in scalars] == trial.scalars(LOSS, "EVAL")["value"].tolist()
    assert rows(tmp_path / "csv" / "findings.csv") == []


def test_what_is_not_wanted_is_left_out(luff: Command, run: Path, tmp_path: Path) -> None:
    done = luff("export", run, tmp_path / "csv", "--to", "csv", "--tensors", "^gradient/", "--mode", "TRAIN")
    assert done.code == 0, done.err
    summaries = rows(tmp_path / "csv" / "summaries.csv")
    assert summaries
    assert all(r["tensor"].startswith("gradient/") and r["mode"] == "TRAIN" for r in summaries)
    assert rows(tmp_path / "csv" / "scalars.csv") == []
    done = luff("export", run, tmp_path / "none", "--to", "csv", "--tensors", "no such tensor")
    assert done.code == 2
    assert "luff tensors" in done.err


@pytest.mark.parametrize("form", ["csv", "tensorboard", "smdebug"])
def test_the_same_command_goes_on_where_it_was(luff: Command, run: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    assert luff("export", run, out, "--to", form).code == 0
    again = luff("export", run, out, "--to", form)
    assert again.code == 0
    assert "holds all 22 steps already" in again.out
    # A run that has grown since: the rest is appended, and whatever was interrupted after the last state is cut off.
    source, growing = tmp_path / "source", tmp_path / "growing"
    assert luff("export", run, source, "--to", "smdebug").code == 0
    assert luff("export", source, tmp_path / "whole", "--to", form).code == 0
    index = Path("index", "000000000")
    shutil.copytree(source, growing, ignore=shutil.ignore_patterns("luff-export.json", "training_job_end.ts"))
    late = sorted((growing / index).iterdir())[9:]
    for file in late:
        file.unlink()
    first = tmp_path / "first"
    assert luff("export", growing, first, "--to", form).code == 0
    assert json.loads((first / "luff-export.json").read_text())["steps"] == 9
    for file in late:
        shutil.copy2(source / index / file.name, file)
    shutil.copy2(source / "training_job_end.ts", growing)
    for file in first.rglob("*"):
        if file.suffix in (".csv", ".luff") and file.name != "findings.csv":
            with file.open("ab") as more:
                more.write(b"half a reco")
    assert luff("export", growing, first, "--to", form).code == 0
    assert contents(first) == contents(tmp_path / "whole")


def test_nothing_of_others_is_written_over(luff: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    done = luff("export", run, tmp_path / "mine", "--to", "csv")
    assert done.code == 2
    assert "not empty" in done.err
    assert contents(tmp_path / "mine") == {"thesis.tex": b"x"}
    assert luff("export", run, tmp_path / "out", "--to", "csv").code == 0
    done = luff("export", run, tmp_path / "out", "--to", "tensorboard")
    assert done.code == 2
    assert "another run, format or choice" in done.err
    (tmp_path / "out" / "luff-export.json").write_text("{")
    done = luff("export", run, tmp_path / "out", "--to", "csv")
    assert done.code == 2
    assert "remove the output directory" in done.err


def test_mistakes_are_named(luff: Command, run: Path, tmp_path: Path) -> None:
    for words, said in (
        (("--to", "hdf5"), "no format"),
        (("--to", "csv", "--step", "3"), "--step goes with"),
        (("--to", "safetensors", "--follow"), "--follow goes with"),
        (("--to", "safetensors", "--step", "999"), "was not saved"),
        (("--to", "csv", "--mode", "DREAM"), "expected TRAIN"),
    ):
        done = luff("export", run, tmp_path / "out", *words)
        assert done.code == 2, words
        assert said in done.err
    assert luff("export", tmp_path / "no run", tmp_path / "out", "--to", "csv").code == 2


def test_safetensors_is_one_step(luff: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    assert luff("export", run, out, "--to", "safetensors", "--step", "3", "--mode", "TRAIN").code == 0
    data = out.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__")["mode_step"] == "3"
    value = library.open_trial(run).tensor(WEIGHT).value(3, "TRAIN")
    begin, end = header[WEIGHT]["data_offsets"]
    assert header[WEIGHT]["dtype"] == "F32"
    read = np.frombuffer(data[8 + length :][begin:end], np.float32).reshape(header[WEIGHT]["shape"])
    np.testing.assert_array_equal(read, value)
    assert max(t["data_offsets"][1] for t in header.values()) == len(data) - 8 - length


def test_smdebug_directories_open_again(luff: Command, run: Path, tmp_path: Path) -> None:
    assert luff("export", run, tmp_path / "sm", "--to", "smdebug").code == 0
    ours, theirs = library.open_trial(run), library.open_trial(tmp_path / "sm")
    assert theirs.steps() == ours.steps()
    assert theirs.steps("EVAL") == ours.steps("EVAL")
    for step in (0, 9, 20):
        np.testing.assert_array_equal(theirs.tensor(WEIGHT).value(step), ours.tensor(WEIGHT).value(step))
    assert theirs.scalars(LOSS)["value"].tolist() == ours.scalars(LOSS)["value"].tolist()
    assert theirs.tensor("gradient/" + WEIGHT).role == "gradient"
    gradient = ours.tensor("gradient/" + WEIGHT)
    if not gradient.value_steps():  # statistics only: they are exported as reductions
        saved = theirs.tensor("gradient/" + WEIGHT).saved_reductions(5)
        assert saved["max", False] == gradient.summary(5)["max"]
    assert luff("show", tmp_path / "sm").code == 0
    broken = tmp_path / "sm" / "index" / "000000000" / "000000000004_worker_0.json"
    broken.write_text(broken.read_text()[:50])
    done = luff("show", tmp_path / "sm")
    assert done.code == 0
    assert "000000000004_worker_0.json" in done.out
    assert "steps     21" in done.out
