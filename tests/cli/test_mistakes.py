"""Bad input to the verbs that read: the error says what was found, where, and what to
do; in the shell and in Python.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import luff as library
import pytest
from luff import errors

from .conftest import Command

WEIGHT = "Sequential_0.weight"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["value", "{run}", "Sequential_0.wieght", 3], ["no tensor", WEIGHT, "Sequential_2.weight"]),
        (["value", "{run}", WEIGHT, 9999], ["step 9999", "nearest saved: 19"]),
        (["value", "{run}", "gradient/" + WEIGHT, 3], ["was not saved", "its summary is there"]),
        (["value", "{run}", WEIGHT, 3, "--mode", "TRIAN"], ["TRIAN", "TRAIN, EVAL, PREDICT or GLOBAL"]),
        (["value", "{run}", WEIGHT, 3, "--worker", 7], ["no worker 7", "0"]),
        (["tensors", "{run}", "("], ["does not compile", "missing closing parenthesis", "byte 1"]),
        (["tensors", "{run}", "--collection", "wieghts"], ["wieghts", "weights"]),
        (["value", "{run}", "Weights", 3], ['it may mean "Sequential_0.weight"', "name one"]),
        (["tensors", "{run}", "accuracy"], ["no tensor", "`luff tensors` lists them"]),
        (["report", "{run}", "-o", "{tmp}/no/r.html"], ["no directory {tmp}/no; make it"]),
        (["report", "{run}", "--max-bytes", "5XB"], ["'5XB' is no size; expected e.g. 5MB or 25MiB"]),
        (["export", "{run}", "{tmp}/w.st", "--to", "safetensors", "--collection", "biases"], ['forms hold "raw"']),
        (["summary", "{run}", "accuracy"], ["no tensor"]),
        (["plot", "{run}", "accuracy"], ["no tensor"]),
        (["show", "{tmp}"], ["without run.json", "{tmp}"]),
        (["verify", "{tmp}"], ["without run.json", "{tmp}"]),
        (["show", "{run}/run.json"], ["found a file, expected the directory of a run"]),
        (["explain", "{tmp}/nothing"], ["no such directory", "{tmp}/nothing"]),
        (["show", "{tmp}/nothing"], ["no such directory", "{tmp}/nothing"]),
        (["stop", "s3://bucket/0"], ["on its own host", "luff request stop s3://bucket/0 --key FILE"]),
        (["trace", "s3://bucket/0"], ["luff request trace s3://bucket/0 --key FILE"]),
        (["vlaue", "{run}"], ["vlaue", "value"]),
        (["show", "{run}", "--jsno"], ["--jsno", "--json"]),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(
    luff: Command, run: Path, tmp_path: Path, arguments: list[object], said: list[str]
) -> None:
    places = {"run": run, "tmp": tmp_path}
    done = luff(*(str(a).format(**places) for a in arguments))
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("luff: ")
    assert done.err.count("\n") == 1
    for text in said:
        assert text.format(**places) in done.err


def test_a_run_of_a_newer_version(luff: Command, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    described = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(described | {"format_major": 99}))
    for verb in ("show", "tensors", "tail", "verify", "check"):
        done = luff(verb, copy)
        assert done.code == 2, verb
        assert "format version 99" in done.err
        assert "newer luff" in done.err
        assert str(copy) in done.err
    with pytest.raises(errors.UnsupportedVersionError, match="99"):
        library.open_trial(copy)


def test_a_run_file_that_is_cut(luff: Command, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text[: len(text) // 2])
    done = luff("show", copy)
    assert done.code == 2
    assert "run.json" in done.err
    with pytest.raises(library.LuffError, match=r"run\.json"):
        library.open_trial(copy)


def test_typed_errors_in_python(run: Path, tmp_path: Path) -> None:
    trial = library.open_trial(run)
    with pytest.raises(errors.NotFoundError, match=r"nearest: .Sequential_0\.weight.*Sequential_2\.weight"):
        trial.tensor("Sequential_0.wieght")
    with pytest.raises(errors.OutOfRangeError, match="nearest saved: 21"):
        trial.tensor(WEIGHT).value(9999)
    with pytest.raises(errors.InvalidArgumentError, match="TRIAN"):
        trial.steps("TRIAN")
    with pytest.raises(errors.InvalidArgumentError, match="does not compile"):
        trial.tensors("(")
    with pytest.raises(errors.NotFoundError, match="no such directory"):
        library.open_trial(tmp_path / "nothing")
    with pytest.raises(library.LuffError, match=r"without run\.json"):
        library.open_trial(tmp_path)
