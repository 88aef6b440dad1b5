"""Output of the verbs that read a run, as text and as JSON."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import luff as library
import numpy as np
import pytest

from .conftest import Command, train

WEIGHT = "Sequential_0.weight"
LOSS = "MSELoss_output_0"


def test_show(luff: Command, run: Path) -> None:
    done = luff("show", run)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == str(run)
    assert "  outcome   completed" in lines
    assert "  worker 0  ended, last step 21" in lines
    assert "  findings  0" in lines
    shown = json.loads(luff("show", run, "--json").out)
    assert shown["outcome"] == "completed"
    assert shown["modes"]["TRAIN"] == {"steps": 20, "first": 0, "last": 19}
    assert shown["modes"]["EVAL"]["steps"] == 2
    assert shown["tensors"] == len(library.open_trial(run).tensors())
    assert shown["problems"] == []


@pytest.mark.parametrize("word", ["loss", "losses", "Loss", "mseloss_OUTPUT"])
def test_a_tensor_is_found_by_what_a_person_calls_it(luff: Command, run: Path, word: str) -> None:
    listed = luff("tensors", run, word)
    assert listed.code == 0, listed.err
    assert [line.split()[1] for line in listed.out.splitlines()] == [LOSS]
    assert luff("value", run, word, 3).out == luff("value", run, LOSS, 3).out
    assert luff("summary", run, word, "--json").out == luff("summary", run, LOSS, "--json").out
    assert luff("plot", run, word).out == luff("plot", run, LOSS).out


def test_show_counts_a_finding_once_however_often_it_was_updated(
    luff: Command, nan_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(nan_run, copy)
    text = luff("check", copy, "--json").out
    assert "NonFinite" in text
    assert '"event":"update"' in text
    file = copy / "rules" / "luff" / "findings.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    ids = {json.loads(line)["id"] for line in text.splitlines()}
    file.write_text(text + text + "no finding\n" + text.splitlines()[0][:40])
    shown = json.loads(luff("show", copy, "--json").out)
    assert shown["findings"] == len(ids)
    assert {finding["id"] for finding in shown["finding_list"]} == ids
    assert any("1 lines are no findings" in problem for problem in shown["problems"])
    out = luff("show", copy).out
    assert f"  findings  {len(ids)}" in out
    assert "NonFinite" in out


def test_tensors(luff: Command, run: Path) -> None:
    lines = luff("tensors", run).out.splitlines()
    assert f"weight            {WEIGHT}  (Linear)" in lines
    assert len(lines) == len(library.open_trial(run).tensors())
    assert luff("tensors", run, "^gradient/.*bias$").out.count("\n") == 2
    listed = json.loads(luff("tensors", run, "--collection", "weights", "--json").out)
    assert [tensor["name"] for tensor in listed] == [WEIGHT, "Sequential_2.weight"]
    assert listed[0]["role"] == "weight"
    assert listed[0]["module_type"] == "Linear"
    assert listed[0]["steps"] == 20


def test_value(luff: Command, run: Path) -> None:
    truth = library.open_trial(run).tensor(WEIGHT).value(3, "TRAIN")
    lines = luff("value", run, WEIGHT, 3).out.splitlines()
    assert lines[0] == f"{WEIGHT} float32 [3, 4], TRAIN step 3"
    assert np.allclose([[float(x) for x in line.split()] for line in lines[1:]], truth, rtol=1e-5)
    value = json.loads(luff("value", run, WEIGHT, 3, "--json").out)
    assert (value["dtype"], value["shape"], value["count"]) == ("float32", [3, 4], 12)
    assert np.array_equal(np.array(value["values"], np.float32).reshape(3, 4), truth)
    assert "... 10 more (--limit 0 shows all)" in luff("value", run, WEIGHT, 3, "--limit", 2).out


def test_summary(luff: Command, run: Path) -> None:
    lines = luff("summary", run, WEIGHT).out.splitlines()
    assert lines[0].split() == [
        "TRAIN",
        "step",
        "update",
        "min",
        "max",
        "mean",
        "std",
        "l2",
        "zeros",
        "nan",
        "inf",
    ]
    assert len(lines) == 1 + 20
    columns = json.loads(luff("summary", run, WEIGHT, "--json").out)["summaries"]
    truth = library.open_trial(run).tensor(WEIGHT).summaries()
    assert columns["l2"] == list(truth["l2"])
    assert columns["step"] == list(truth["step"])


def test_summary_of_a_scalar_is_its_values(luff: Command, run: Path) -> None:
    lines = luff("summary", run, LOSS).out.splitlines()
    assert lines[0].split() == ["TRAIN", "step", "update", "value"]
    assert [line.split()[:2] for line in lines[1:-2]] == [[str(step), str(step)] for step in range(20)]
    assert lines[-1] == "also at 2 steps in EVAL (--mode EVAL)"
    of_all = luff("summary", run, LOSS, "--mode", "GLOBAL").out.splitlines()
    assert [line.split()[3] for line in of_all[-2:]] == ["TRAIN", "EVAL"]
    of_mode = luff("summary", run, LOSS, "--mode", "EVAL").out.splitlines()
    assert [line.split()[:2] for line in of_mode[:3]] == [["EVAL", "step"], ["0", "10"], ["1", "20"]]
    assert luff("value", run, LOSS, 1, "--mode", "EVAL").out.splitlines()[1] == of_mode[2].split()[2]


def test_statistics_of_nothing_finite_are_not_numbers(luff: Command, nan_run: Path) -> None:
    last = luff("summary", nan_run, WEIGHT).out.splitlines()[-1].split()
    assert last == ["7", "7", *["-"] * 5, "0", "12", "0"]
    drawn = luff("plot", nan_run).out
    assert "NaN or Inf |" in drawn
    assert "NaN or Inf at 3 of 8 steps, the first is 5" in drawn


def test_what_is_not_finite_has_a_name_in_json(luff: Command, nan_run: Path) -> None:
    scalars = json.loads(luff("summary", nan_run, LOSS, "--mode", "TRAIN", "--json").out)["scalars"]
    assert scalars["value"][5:] == ["NaN", "NaN", "NaN"]
    assert np.isfinite(scalars["value"][:5]).all()
    value = json.loads(luff("value", nan_run, WEIGHT, 7, "--json").out)
    assert set(value["values"]) == {"NaN"} or "NaN" in value["values"]


def test_tail(luff: Command, run: Path) -> None:
    lines = luff("tail", run, "-n", 3).out.splitlines()
    assert lines[0].split() == ["mode", "step", "update", "of", "all", "seconds"]
    assert [line.split()[:4] for line in lines[1:4]] == [
        ["TRAIN", "18", "18", "19"],
        ["TRAIN", "19", "19", "20"],
        ["EVAL", "1", "20", "21"],
    ]
    assert "optimizer/SGD.group0.lr 0.05" in lines[1]
    assert "optimizer/SGD.group0.lr" not in lines[2]  # unchanged, so not shown again
    assert lines[4] == "completed"
    rows = [json.loads(line) for line in luff("tail", run, "-n", 2, "--json").out.splitlines()]
    assert [row["mode"] for row in rows] == ["TRAIN", "EVAL"]
    assert LOSS in rows[0]["scalars"]


def test_plot_in_the_terminal(luff: Command, run: Path) -> None:
    done = luff("plot", run)
    assert done.code == 0
    assert done.out.startswith(f"{LOSS} (TRAIN)\n")  # each mode has a line of its own
    assert f"\n{LOSS} (EVAL, mean of each evaluation)\n" in done.out
    assert "gradient/Sequential_0.weight (l2 norm)" in done.out
    assert any(0x2800 < ord(c) < 0x2900 for c in done.out)
    histogram = luff("plot", run, WEIGHT).out
    assert histogram.startswith(f"{WEIGHT} (share of elements)")
    assert "▓" in histogram or "█" in histogram


def test_plot_draws_what_matters_first_and_says_what_it_left_out(luff: Command, run: Path) -> None:
    lines = luff("plot", run).out.splitlines()
    # The names of charts: neither rows of one, nor its axis.
    titles = [one for one in lines if one[:1].strip() and not one.startswith("not drawn")]
    assert titles[:3] == [
        f"{LOSS} (TRAIN)",
        f"{LOSS} (EVAL, mean of each evaluation)",
        "optimizer/SGD.group0.lr",
    ]
    assert titles[3].startswith("gradient/")
    assert len(titles) <= 6
    axes = {line.split()[-1] for line in lines if line.split()[:1] == ["step"]}
    assert axes == {"20"}, "all charts have one axis"
    assert re.match(r"not drawn: .*\d+ (gradient|weight)s?", lines[-2]), lines[-2]
    assert lines[-1] == f"  luff plot {run} NAME draws one, luff tensors {run} lists them"


@pytest.mark.parametrize("names", [[], [WEIGHT, LOSS]])
def test_plot_as_a_picture(run: Path, tmp_path: Path, names: list[str], luff: Command) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    done = luff("plot", run, *names, "--out", picture)
    assert done.code == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_evaluation_has_a_mean(luff: Command, tmp_path: Path) -> None:
    """Two evaluations of two batches: `value`, `summary` and `tail` show their means beside their steps."""
    run = tmp_path / "run"
    train(run, evaluated=2)
    steps = json.loads(luff("summary", run, LOSS, "--mode", "EVAL", "--json").out)
    values, evaluations = steps["scalars"]["value"], steps["evaluations"]
    assert [one["mean"] for one in evaluations] == [sum(values[:2]) / 2, sum(values[2:]) / 2]
    assert [[one[key] for key in ("first_step", "last_step", "steps", "update")] for one in evaluations] == [
        [0, 1, 2, 10],
        [2, 3, 2, 20],
    ]
    means = [f"{one['mean']:.6g}" for one in evaluations]

    rows = [row.split() for row in luff("summary", run, LOSS, "--mode", "EVAL").out.splitlines()]
    assert rows[3] == ["10", means[0], *["mean", "of", "steps", "0", "to", "1"]]
    assert rows[6] == ["20", means[1], *["mean", "of", "steps", "2", "to", "3"]]
    newest = f"{means[1]} in the newest evaluation (EVAL steps 2 to 3, update 20)"
    assert newest in luff("summary", run, LOSS).out.splitlines()
    value = luff("value", run, LOSS, 1, "--mode", "EVAL").out
    assert (
        value.splitlines()[-1] == f"{means[0]} is the mean of this evaluation (EVAL steps 0 to 1, update 10)"
    )
    given = json.loads(luff("value", run, LOSS, 3, "--mode", "EVAL", "--json").out)
    assert given["evaluation"] == evaluations[1]
    assert "evaluation" not in json.loads(luff("value", run, LOSS, 1, "--json").out)

    for shown, count in (
        (1, 1),
        (2, 1),
        (13, 2),
        (14, 2),
        (24, 2),
    ):  # also where it begins within an evaluation
        rows = [row.split() for row in luff("tail", run, "-n", shown).out.splitlines() if " mean " in row]
        wanted = [["10", LOSS, means[0], "1)"], ["20", LOSS, means[1], "3)"]]
        assert [[row[2], row[3], row[4], row[-1]] for row in rows] == wanted[-count:]
