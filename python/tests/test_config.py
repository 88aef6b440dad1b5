"""Collections, save configurations and reductions in Python, and how the C++ library reads them."""

from __future__ import annotations

import json

import pytest
from luff._base_hook import make_config
from luff._codes import Mode
from luff._rules_beside import take_rules
from luff.config import Collection, ReductionConfig, SaveConfig, SaveConfigMode, describe, to_json
from luff.errors import InvalidArgumentError


def test_save_steps_are_a_union_with_the_interval() -> None:
    save = SaveConfigMode(save_steps=[3, 7])
    assert [n for n in range(-1, 1001) if save.should_save_step(n)] == [0, 3, 7, 500, 1000]


def test_start_does_not_shift_the_interval_and_end_is_exclusive() -> None:
    save = SaveConfigMode(save_interval=5, start_step=3, end_step=15)
    assert [n for n in range(30) if save.should_save_step(n)] == [5, 10]
    assert not SaveConfigMode(end_step=0).should_save_step(0)


def test_numbers_may_be_text_as_in_the_original() -> None:
    assert SaveConfigMode(save_interval="10").save_interval == 10  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        SaveConfigMode(save_interval=0)
    with pytest.raises(InvalidArgumentError):
        SaveConfigMode(save_steps=["3"])  # type: ignore[list-item]


def test_a_mode_without_configuration_is_an_error() -> None:
    save = SaveConfig({Mode.EVAL: SaveConfigMode(2)})
    assert save.should_save_step("EVAL", 4)
    with pytest.raises(InvalidArgumentError, match="TRAIN"):
        save.should_save_step("TRAIN", 4)
    with pytest.raises(InvalidArgumentError, match="TRIAN"):
        SaveConfig({"TRIAN": SaveConfigMode()})


@pytest.mark.parametrize(
    ("reduction", "forms"),
    [
        (ReductionConfig(), []),
        (ReductionConfig(reductions=["min", "mean"]), ["summary"]),
        (ReductionConfig(norms=["l1"], save_raw_tensor=True), ["summary", "raw"]),
        (ReductionConfig(abs_reductions=["min"]), ["extra"]),
        (ReductionConfig(reductions=["prod"], save_shape=True), ["extra", "shape"]),
    ],
)
def test_reductions_become_forms(reduction: ReductionConfig, forms: list[str]) -> None:
    assert reduction.forms() == forms


def test_wrong_reductions_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="median"):
        ReductionConfig(reductions=["median"])
    with pytest.raises(InvalidArgumentError, match="save_raw_tensor"):
        ReductionConfig(save_raw_tensor=1)  # type: ignore[arg-type]


def test_collections_reach_the_library() -> None:
    text = to_json(
        [
            Collection("relu", "relu", forms=["raw"], save_config=SaveConfig({"EVAL": SaveConfigMode(7)})),
            Collection("weights", reduction_config=ReductionConfig(norms=["l2"]), keep={"last": 3}),
        ],
        save=SaveConfigMode(save_interval=20),
    )
    found = {c["name"]: c for c in describe(text)}
    assert found["relu"]["save"]["EVAL"]["save_interval"] == 7
    assert found["relu"]["save"]["TRAIN"]["save_interval"] == 20
    assert found["weights"]["forms"] == ["summary"]
    assert found["weights"]["keep"] == {"last": 3}
    assert found["gradients"]["forms"] == ["summary"]


def test_mistakes_name_the_nearest_key() -> None:
    with pytest.raises(InvalidArgumentError, match='did you mean "max_overhead"'):
        to_json(max_overhed=0.1)
    with pytest.raises(InvalidArgumentError, match='did you mean "histogram"'):
        to_json([Collection("x", "x", forms=["histogramm"])])


def test_an_unknown_option_of_attach_is_told_with_the_nearest() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"unknown option 'rulez'; nearest: 'rules'.*; expected .*on_finding"
    ):
        make_config(None, {"rulez": True})


def test_a_misspelt_argument_is_told_with_the_nearest() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"unknown option 'optimzer'; nearest: 'optimizer'.*; expected .*run"
    ):
        make_config(None, {"optimzer": 1}, ("optimizer", "loss_fn"))
    with pytest.raises(InvalidArgumentError, match=r"unknown option 'resum'; nearest: 'resume'"):
        make_config(None, {"resum": True})


def test_rules_may_be_a_list() -> None:
    assert take_rules({"rules": ["Overfit", "NonFinite"]}) == ("Overfit,NonFinite", "warn")
    assert take_rules({"rules": "Overfit,NonFinite"}) == ("Overfit,NonFinite", "warn")
    assert take_rules({"rules": []}) == ("", "warn")
    with pytest.raises(InvalidArgumentError, match="expected True, a list of rules, or a text"):
        take_rules({"rules": ["Overfit", 3]})


def test_a_collection_is_its_json_form() -> None:
    collection = Collection("x", ["a", "b"])
    assert json.loads(json.dumps(dict(collection))) == {"name": "x", "include": ["a", "b"]}
