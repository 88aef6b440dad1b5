"""TensorBoard, DuckDB, pandas, polars and safetensors read what `luff export` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import luff as library
import numpy as np
import pytest

from .conftest import Command

WEIGHT, LOSS = "Sequential_0.weight", "MSELoss_output_0"


def test_tensorboard_shows_scalars_histograms_and_distributions(
    luff: Command, run: Path, tmp_path: Path
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "tb"
    assert luff("export", run, out, "--to", "tensorboard").code == 0
    assert sorted(p.name for p in out.iterdir() if p.is_dir()) == ["eval", "train"]
    events = accumulator.EventAccumulator(str(out / "train"), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    trial = library.open_trial(run)
    loss = trial.scalars(LOSS, "TRAIN")
    seen = events.Scalars(LOSS)
    assert [e.step for e in seen] == loss["step"].tolist()
    assert [e.value for e in seen] == np.float32(loss["value"]).tolist()
    l2 = events.Scalars(f"l2/{WEIGHT}")
    columns = trial.tensor(WEIGHT).summaries("TRAIN")
    assert [e.value for e in l2] == np.float32(columns["l2"]).tolist()
    histogram = events.Histograms(WEIGHT)[-1]
    value = np.asarray(trial.tensor(WEIGHT).value(histogram.step))
    proto = histogram.histogram_value
    assert proto.num == value.size
    assert proto.min == value.min()
    assert proto.max == value.max()
    assert proto.sum == pytest.approx(float(value.sum()), rel=1e-5)
    limits, counts = np.array(proto.bucket_limit), np.array(proto.bucket)
    assert counts.sum() == value.size
    assert (np.diff(limits) > 0).all()
    below = np.cumsum(counts)
    for limit, count in zip(limits, below, strict=True):
        assert (
            np.count_nonzero(value <= limit) >= count >= np.count_nonzero(value < limit * (1 - 1e-6) - 1e-38)
        )
    distribution = events.CompressedHistograms(WEIGHT)
    assert [c.step for c in distribution] == [e.step for e in l2]
    assert events.Tags()["distributions"]


def parquet(luff: Command, run: Path, out: Path) -> None:
    """`luff export` would start the interpreter beside it; the test uses this one, which has pyarrow."""
    assert luff is not None
    done = subprocess.run(
        [sys.executable, "-m", "luff._verbs.export", "--to", "parquet", "--", str(run), str(out)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows" in done.stdout


def test_parquet_is_read_by_duckdb_pandas_and_polars(luff: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    duckdb, pandas, polars = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    out = tmp_path / "tables"
    parquet(luff, run, out)
    trial = library.open_trial(run)
    expected = sum(len(trial.tensor(name).summaries()["step"]) for name in trial.tensors())
    parts = str(out / "summaries" / "*.parquet")
    rows = duckdb.sql(f"select count(*), count(distinct tensor) from '{parts}'").fetchall()[0]
    assert rows[0] == expected
    frame = pandas.read_parquet(out / "summaries")
    weight = frame[(frame["tensor"] == WEIGHT) & (frame["mode"] == "TRAIN")]
    columns = trial.tensor(WEIGHT).summaries("TRAIN")
    assert weight["step"].tolist() == columns["step"].tolist()
    for name in ("min", "max", "mean", "std", "l2", "update", "count"):
        assert weight[name].tolist() == columns[name].tolist()
    scalars = polars.read_parquet(str(out / "scalars" / "*.parquet"))
    loss = scalars.filter((polars.col("tensor") == LOSS) & (polars.col("mode") == "EVAL"))
    assert loss["value"].to_list() == trial.scalars(LOSS, "EVAL")["value"].tolist()
    assert duckdb.sql(f"select count(*) from '{out / 'findings.parquet'}'").fetchall()[0][0] == 0


def test_parquet_writes_missing_parts_only(
    luff: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    from luff._verbs import export

    monkeypatch.setattr(export, "_PART_ROWS", 30)
    out = tmp_path / "tables"
    rows, _ = export.export(str(run), str(out))
    parts: list[Any] = sorted((out / "summaries").glob("*.parquet"))
    assert len(parts) > 2
    before = parts[1].read_bytes()
    parts[1].unlink()
    again, _ = export.export(str(run), str(out))
    assert 0 < again < rows
    assert parts[1].read_bytes() == before
    assert sorted((out / "summaries").glob("*.parquet")) == parts
    with pytest.raises(library.errors.FailedPreconditionError, match="another run"):
        export.export(str(run), str(out), mode="TRAIN")


def test_safetensors_are_read_by_its_library(luff: Command, run: Path, tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    out = tmp_path / "weights.safetensors"
    done = luff("export", run, out, "--to", "safetensors", "--step", 7)
    assert done.code == 0, done.err
    read = numpy.load_file(out)
    trial = library.open_trial(run)
    assert WEIGHT in read
    for name, value in read.items():
        np.testing.assert_array_equal(value, trial.tensor(name).value(7))
