"""Settings as users pass them: NumPy numbers, one text for a list, configurations as objects; or a clear error."""

from __future__ import annotations

import json
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luff._base_hook import make_config, thinned
from luff._boosting._config import make_config as make_boosting_config
from luff._codes import Mode
from luff.config import Collection, ReductionConfig, SaveConfig, SaveConfigMode, describe, to_json
from luff.errors import InvalidArgumentError, LuffError


class _Every(IntEnum):
    TENTH = 10


GIVEN = [
    ({"save_interval": np.int64(10)}, {"save": {"save_interval": 10}}),
    (
        {"save_interval": np.uint8(10), "end_step": np.int32(50)},
        {"save": {"save_interval": 10, "end_step": 50}},
    ),
    ({"save_interval": _Every.TENTH}, {"save": {"save_interval": 10}}),
    ({"save_interval": np.array(10)}, {"save": {"save_interval": 10}}),
    ({"save_steps": np.arange(3)}, {"save": {"save_steps": [0, 1, 2]}}),
    ({"save_steps": range(3)}, {"save": {"save_steps": [0, 1, 2]}}),
    ({"save_steps": (np.int64(1), 2)}, {"save": {"save_steps": [1, 2]}}),
    ({"save_all": np.bool_(True)}, {"save_all": True}),
    ({"max_overhead": np.float32(0.5)}, {"max_overhead": 0.5}),
    ({"include_regex": "relu"}, {"include_regex": ["relu"]}),
    ({"save": SaveConfigMode(10)}, {"save": SaveConfigMode(10).to_json_dict()}),
    ({"save": SaveConfig(save_interval=np.int64(7))}, {"save": SaveConfig(save_interval=7).to_json_dict()}),
    ({"save": {Mode.TRAIN: {"save_interval": 5}}}, {"save": {"TRAIN": {"save_interval": 5}}}),
]


@pytest.mark.parametrize(("options", "expected"), GIVEN)
def test_numbers_lists_and_objects_of_other_kinds_are_taken(options, expected):
    config = make_config(None, options)
    assert config == expected
    assert describe(json.dumps(config))
    assert make_boosting_config(None, options)["defaults"] is False


COLLECTIONS = [
    ("weights", [{"name": "weights", "forms": ["raw", "summary"]}]),
    (("weights", "losses"), ["weights", "losses"]),
    (Collection("relu", roles="output", module_types="ReLU", forms="units"), None),
    ([Collection("relu", include="relu")], ["relu"]),
    ([{"name": "relu", "include": "relu", "forms": ReductionConfig(norms="l2")}], ["relu"]),
    ({"weights": None, "losses": SaveConfig(save_interval=3)}, ["weights", "losses"]),
    ({"head": {"tensor_names": "fc.weight", "save": SaveConfigMode(np.int64(2))}}, ["head"]),
]


@pytest.mark.parametrize(("collections", "expected"), COLLECTIONS)
def test_collections_are_taken_as_one_name_as_objects_and_by_name(collections, expected):
    if isinstance(collections, Collection):
        collections, expected = [collections], ["relu"]
    found = make_config(collections, {})["collections"]
    names = [one["name"] for one in found]
    assert names == [one if isinstance(one, str) else one["name"] for one in expected]
    assert {one["name"] for one in describe(json.dumps({"collections": found}))} >= set(names)
    thinned(collections, {})


WRONG = [
    (None, {"save_interval": object()}, "save_interval"),
    (None, {"max_overhead": float("nan")}, "max_overhead"),
    (None, {"save": {3: {}}}, "save"),
    (None, {"include_regex": [1]}, "include_regex"),
    (None, {"policy": b"drop"}, "policy"),
    (5, {}, "collections"),
    ([5], {}, r"collections\[0\]"),
    ({"weights": 5}, {}, "weights"),
    ([{"name": ["a"]}], {}, "name"),
    ({5: {}}, {}, "collections"),
    ([{"name": "a", "roles": 3}], {}, r"collections\[0\]\['roles'\]"),
]


@pytest.mark.parametrize(("collections", "options", "place"), WRONG)
def test_what_is_no_setting_is_named(collections, options, place):
    with pytest.raises(InvalidArgumentError, match=rf"{place}.* expected"):
        make_config(collections, options)


def test_one_text_is_no_list_of_letters():
    assert dict(Collection("relu", roles="output", forms="summary")) == {
        "name": "relu",
        "roles": ["output"],
        "forms": ["summary"],
    }
    assert ReductionConfig(norms="l2").norms == ["l2"]
    assert SaveConfigMode(save_steps=np.array([1, 2])).save_steps == [1, 2]
    json.loads(
        to_json([Collection("relu", include="relu", max_bytes=np.int64(100))], save_interval=np.int64(3))
    )


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)), st.builds(np.float32, st.floats(width=32)),
    st.builds(object), st.sampled_from([Mode.TRAIN, SaveConfigMode(), np.bool_(True), np.zeros(3), {1, 2}, print]),
)  # fmt: skip
_KEYS = st.one_of(
    st.sampled_from(["name", "include", "forms", "save", "save_interval", "save_steps", "keep", "roles"]),
    st.text(max_size=4), st.integers(),
)  # fmt: skip
_ANYTHING = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(_ANYTHING, st.dictionaries(st.sampled_from(["save", "save_interval", "collections", "x"]), _ANYTHING))
def test_whatever_is_given_there_is_a_configuration_or_an_error_of_luff(collections, options):
    for make in (make_config, make_boosting_config):
        try:
            config = make(collections, options)
        except LuffError:
            continue
        assert json.loads(json.dumps(config, allow_nan=False)) == config
