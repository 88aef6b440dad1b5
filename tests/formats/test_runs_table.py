"""`luff runs --parquet`: the cards as a table that others read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command

pq = pytest.importorskip("pyarrow.parquet")


def card(number: int, **more: Any) -> dict[str, Any]:
    return {
        "card": 1, "run": f"/runs/{number}", "run_id": f"{number:032x}", "name": f"run{number}", "verdict": "ok",
        "begun_unix_ns": 1_700_000_000_000_000_000 + number, "took_s": 1.5, "steps": {"TRAIN": 60}, "workers": 1,
        "command": ["train.py"], "tags": [], "findings": {"count": 0, "rules": []}, "loss": "loss", "eval_loss": "",
        "scalars": [{"name": "loss", "mode": "TRAIN", "count": 60, "first": 1, "last": "NaN", "last_step": 59,
                     "min": 0.5, "max": 1}],
        "parameters": {"lr": number / 10, "deep": True, "width": 8 if number else "wide"}, "problems": [], **more,
    }  # fmt: skip


def test_columns_have_the_kinds_of_their_values() -> None:
    from luff._verbs.runs_table import table_of

    cards = [
        card(0),
        card(
            1, findings={"count": 2, "rules": ["NonFinite"], "first": {"rule": "NonFinite", "since_step": 3}}
        ),
    ]
    table = table_of(cards).to_pydict()
    assert table["name"] == ["run0", "run1"]
    assert table["param.lr"] == [0.0, 0.1]
    assert table["param.deep"] == [True, True]
    assert table["param.width"] == ["wide", "8"]
    assert table["steps_train"] == [60, 60]
    assert table["findings"] == [0, 2]
    assert table["first_rule"] == [None, "NonFinite"]
    assert table["first_since_step"] == [None, 3]
    assert math.isnan(table["loss_last"][0])
    assert table["loss_min"] == [0.5, 0.5]
    assert table["eval_loss_last"] == [None, None]
    assert table["scalars"][0][0]["max"] == 1.0
    assert json.loads(table["parameters"][1]) == {"lr": 0.1, "deep": True, "width": 8}
    seeds = table_of([card(0, parameters={"seed": (1 << 53) + 1}), card(1, parameters={})])
    assert seeds.to_pydict()["param.seed"] == [(1 << 53) + 1, None]
    assert table_of([]).num_rows == 0
    assert table_of([{"run": "/x", "parameters": {"n": 1 << 80}, "begun_unix_ns": 1 << 80}]).num_rows == 1


def test_an_interrupted_table_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from luff._verbs import runs_table

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs_table._write(runs_table.table_of([]), str(tmp_path / "runs.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_the_runs_that_were_asked_for_are_the_rows(luff: Command, run: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    file = tmp_path / "runs.parquet"
    done = luff("runs", str(run.parent), "--parquet", str(file), "--all")
    assert done.code == 0, done.err
    assert luff("runs", str(run.parent), "--parquet", str(file), "--limit", "1").code == 2
    told = [json.loads(line) for line in luff("runs", str(run.parent), "--json", "--all").out.splitlines()]
    rows = duckdb.sql(
        f"select run, verdict, steps_train, took_s from '{file}' order by begun desc"
    ).fetchall()
    assert rows == [(one["run"], one["verdict"], one["steps"].get("TRAIN", 0), one["took_s"]) for one in told]
    none = tmp_path / "none.parquet"
    assert luff("runs", str(run.parent), "--where", "verdict = empty", "--parquet", str(none)).code == 0
    assert pq.read_table(none).num_rows == 0


def test_what_cannot_be_written_is_said(luff: Command, run: Path, tmp_path: Path) -> None:
    done = luff("runs", str(run.parent), "--parquet", str(tmp_path / "no" / "runs.parquet"))
    assert done.code == 2
    assert "the table cannot be written" in done.err
    both = luff("runs", str(run.parent), "--parquet", str(tmp_path / "x"), "--json")
    assert both.code == 2
    assert list(tmp_path.glob("*.parquet*")) == []
