"""Luff reads what the real smdebug wrote, and the real smdebug reads what Luff wrote, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import luff as library
import numpy as np
import pytest

from .conftest import Command, Side, train


def values_of(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Returns every value that Luff shows, in the form of smdebug_side.py."""
    trial = library.open_trial(path)
    told: dict[str, dict[str, list[Any]]] = {}
    for name in trial.tensors():
        tensor = trial.tensor(name)
        values = {}
        for step in tensor.steps():
            for worker in tensor.workers(step):
                try:
                    value = np.asarray(tensor.value(step, worker=worker))
                except library.errors.OutOfRangeError:
                    continue
                digest = hashlib.sha256(value.tobytes()).hexdigest()
                values[f"{step} worker_{worker}"] = [str(value.dtype), list(value.shape), digest]
        told[name] = values
    return told


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, smdebug: Side) -> Path:
    """A trial that smdebug wrote. Do not change it."""
    path = tmp_path_factory.mktemp("smdebug") / "trial"
    smdebug("write", path)
    return path


def test_luff_reads_what_smdebug_wrote(written: Path, smdebug: Side) -> None:
    theirs = smdebug("read", written)
    trial = library.open_trial(written)
    assert {m: trial.steps(m) for m in ("TRAIN", "EVAL", "GLOBAL")} == theirs["steps"]
    assert trial.tensors() == sorted(theirs["tensors"])
    assert values_of(written) == {name: t["values"] for name, t in theirs["tensors"].items()}
    for name, found in theirs["collections"].items():
        assert trial.tensors(collection=name) == sorted(found)
    reduced = 0
    for name, told in theirs["tensors"].items():
        tensor = trial.tensor(name)
        for place, reductions in told["reductions"].items():
            step = int(place.split()[0])
            mine = {f"{'abs_' if a else ''}{n}": v for (n, a), v in tensor.saved_reductions(step).items()}
            assert mine == reductions
            summary = tensor.summary(step)
            assert summary["min"] == reductions["min"]
            assert summary["mean"] == pytest.approx(reductions["mean"], rel=1e-5)
            assert summary["l2"] == pytest.approx(reductions["l2"], rel=1e-5)
            reduced += 1
    assert reduced > 0
    assert trial.problems() == []
    assert trial.outcome == "completed"


def test_the_commands_take_it(luff: Command, written: Path) -> None:
    shown = json.loads(luff("show", written, "--json").out)
    assert shown["outcome"] == "completed"
    assert shown["modes"]["TRAIN"]["steps"] == 5
    assert "Sequential_0.weight" in luff("tensors", written).out
    assert "float32 [8, 4]" in luff("value", written, "Sequential_0.weight", 2).out
    assert luff("summary", written, "Sequential_0.weight").out.count("\n") == 7
    assert "CrossEntropyLoss_output_0" in luff("plot", written).out
    assert luff("check", written).code == 0
    verified = json.loads(luff("verify", written, "--json").out)
    assert verified["clean"], verified["damage"]
    assert verified["records"] == verified["values"] > 100


def test_smdebug_reads_what_luff_exports(luff: Command, written: Path, smdebug: Side, tmp_path: Path) -> None:
    """smdebug's own trial is unchanged after an import and export by Luff."""
    done = luff("export", written, tmp_path / "out", "--to", "smdebug")
    assert done.code == 0, done.err
    assert done.err == ""
    before, after = smdebug("read", written), smdebug("read", tmp_path / "out")
    assert after["steps"] == before["steps"]
    assert after["tensors"] == before["tensors"]
    assert after["workers"] == before["workers"]
    assert after["collections"] == before["collections"]


def test_smdebug_reads_a_run(luff: Command, smdebug: Side, tmp_path: Path) -> None:
    train(tmp_path / "run", steps=12)
    assert luff("export", tmp_path / "run", tmp_path / "out", "--to", "smdebug").code == 0
    theirs = smdebug("read", tmp_path / "out")
    run = library.open_trial(tmp_path / "run")
    assert theirs["steps"]["TRAIN"] == run.steps("TRAIN")
    mine = {name: values for name, values in values_of(tmp_path / "run").items() if values}
    assert mine
    for name, values in mine.items():
        assert theirs["tensors"][name]["values"] == values
    loss = run.scalars("MSELoss_output_0")
    saved = theirs["tensors"]["MSELoss_output_0"]["values"]
    # The run also contains the loss as a tensor, which takes precedence over the number.
    digests = [hashlib.sha256(np.float32(v).tobytes()).hexdigest() for v in loss["value"]]
    assert [saved[f"{step} worker_0"] for step in loss["step"]] == [["float32", [], d] for d in digests]
    assert "Sequential_0.weight" in theirs["collections"]["weights"]
    assert theirs["collections"]["losses"] == ["MSELoss_output_0"]


def test_an_export_is_the_same_however_often_it_was_interrupted(
    luff: Command, written: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert luff("export", written, out, "--to", "smdebug").code == 0
    state = json.loads((out / "luff-export.json").read_text())
    files = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for name in files:
        if "00000000000" in str(name) and int(str(name.name)[:12]) > 4:
            (out / name).unlink()
    (out / "luff-export.json").write_text(json.dumps({**state, "steps": 3, "done": False}))
    assert luff("export", written, out, "--to", "smdebug").code == 0
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()} == files
