"""`luff compare` and `luff label` on real trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import luff as library
import pytest

from .conftest import Command, torch, train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings that differ in one thing each."""
    folder = tmp_path_factory.mktemp("compared")
    train(folder / "one")
    train(folder / "same")
    train(folder / "longer", steps=26)
    train(folder / "faulty", nan_at=8)
    return folder


def compared(luff: Command, *words: object) -> Any:
    code, out, err = luff("compare", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_same_training_twice_is_bit_identical(luff: Command, runs: Path) -> None:
    told = compared(luff, runs / "one", runs / "same")["divergence"][0]
    assert told["any"] is None
    assert told["steps"] == 20
    assert told["sentences"][0].startswith("Bit-identical: all ")
    code, out, _ = luff("compare", runs / "one", runs / "same")
    assert code == 0
    assert "Bit-identical" in out
    assert "No findings stand" in out


def test_a_longer_training_is_compared_as_far_as_both_go(luff: Command, runs: Path) -> None:
    told = compared(luff, runs / "one", runs / "longer")["divergence"][0]
    assert told["last"] == 19
    assert told["any"] is None
    assert "longer has 26" in told["sentences"][0]


def test_the_first_step_that_differs_is_named(luff: Command, runs: Path) -> None:
    told = compared(luff, runs / "one", runs / "faulty")["divergence"][0]
    assert told["any"]["step"] == 8
    assert {at["kind"]: at["step"] for at in told["beyond"]} == {"losses": 8, "gradients": 8, "weights": 9}
    assert told["beyond"][0]["b"] == "NaN"
    out = " ".join(luff("compare", runs / "one", runs / "faulty").out.split())
    assert "Bit-identical before TRAIN step 8" in out
    assert "Gasser" in out


def test_another_rate_and_another_start_are_told_apart(luff: Command, tmp_path: Path) -> None:
    from luff.torch import attach

    for name, seed, lr in (("base", 0, 0.05), ("rate", 0, 0.2), ("seed", 1, 0.05)):
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        loss_fn = torch.nn.MSELoss()
        hook = attach(model, optimizer=optimizer, loss_fn=loss_fn, run=str(tmp_path / name))
        torch.manual_seed(7)
        for _ in range(60):
            x = torch.randn(16, 4)
            loss = loss_fn(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        hook.close()
    told = compared(luff, *(tmp_path / name for name in ("base", "rate", "seed")))
    settings = {(row["kind"], row["name"]): row["values"] for row in told["settings"]}
    assert settings["parameter", "lr"] == ["0.05", "0.2", "0.05"]
    assert settings["optimizer", "SGD.group0.lr"] == ["0.05", "0.2", "0.05"]
    rate, seed = told["divergence"]
    first = {at["kind"]: at["step"] for at in rate["beyond"]}
    assert rate["any"]["step"] == 0  # the rate itself is a number that is recorded
    assert 1 <= first["weights"] <= 3
    assert seed["beyond"][0]["step"] == 0
    assert any("another initialisation or seed" in sentence for sentence in seed["sentences"])


def test_mistakes_have_sentences(luff: Command, runs: Path, tmp_path: Path) -> None:
    for words, said in (
        ([runs / "one"], "expected 2 to 8 runs"),
        ([runs / "one", runs / "one"], "named twice"),
        ([runs / "one", tmp_path / "none"], "no such directory"),
        ([runs / "one", tmp_path], "run"),
    ):
        code, out, err = luff("compare", *words)
        assert (code, out) == (2, "")
        assert said in err


def test_labels_are_added_up_and_kept_with_their_author(luff: Command, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert luff("label", copy).out == ""
    assert (
        luff("label", copy, "--tag", "a", "--tag", "b", "--name", "the best", "--note", "line\nline").code
        == 0
    )
    assert luff("tag", copy, "c", "--remove", "a").code == 0
    assert json.loads(luff("label", copy, "--json").out) == {
        "tags": ["b", "c"],
        "title": "the best",
        "note": "line\nline",
    }
    assert luff("label", copy, "--untag", "b", "--name", "").code == 0
    assert luff("tag", copy).out == "c\n"
    assert luff("label", copy, "--tag", "two words").code == 2
    records = [json.loads(path.read_text()) for path in sorted((copy / "control").glob("*.json"))]
    labels = [record for record in records if record["kind"] == "label"]
    assert [record["body"] for record in labels][1] == {"add": ["c"], "remove": ["a"]}
    assert all("@" in record["author"] and record["created_unix_ns"] > 0 for record in labels)
    card = json.loads(luff("runs", tmp_path, "--where", "tag = c", "--json").out)
    assert (card["tags"], card["note"], card["title"]) == (["c"], "line\nline", "")
    with library.open_trial(copy) as trial:  # readers of the job pass them over
        assert trial.steps("TRAIN")
