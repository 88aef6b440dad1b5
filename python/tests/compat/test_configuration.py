"""Collections, what is saved, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from luff.compat.smdebug import (
    Collection,
    CollectionManager,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    modes,
)
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError, SMDebugValueError


def saved(config: SaveConfigMode, steps: int = 30) -> list[int]:
    return [step for step in range(-1, steps) if config.should_save_step(step)]


def test_listed_steps_come_in_addition_to_the_interval():
    assert saved(SaveConfigMode(save_interval=10, save_steps=[3, 7])) == [0, 3, 7, 10, 20]


def test_the_interval_is_not_shifted_by_the_start_and_the_end_is_not_saved():
    assert saved(SaveConfigMode(save_interval=10, start_step=3, end_step=20)) == [10]
    assert saved(SaveConfigMode(save_interval=10, end_step=0)) == []


def test_numbers_may_be_texts():
    assert saved(SaveConfigMode(save_interval="10", start_step="5")) == [10, 20]


@pytest.mark.parametrize("keys", [{"save_interval": 0}, {"save_interval": "often"}, {"save_steps": "1,2"}])
def test_a_wrong_number_is_told_at_once(keys):
    with pytest.raises(SMDebugValueError):
        SaveConfigMode(**keys)


def test_modes_that_are_missing_take_the_default():
    config = SaveConfig({modes.TRAIN: SaveConfigMode(save_interval=2)})
    with pytest.raises(SMDebugValueError, match="EVAL"):
        config.should_save_step(modes.EVAL, 0)
    config.merge_default_save_config(SaveConfig(save_interval=7))
    assert config.should_save_step(modes.TRAIN, 4)
    assert not config.should_save_step(modes.EVAL, 4)
    assert config.should_save_step(modes.EVAL, 7)


def test_what_is_no_configuration_is_refused():
    with pytest.raises(SMDebugTypeError):
        SaveConfig.parse(5)
    with pytest.raises(SMDebugValueError):
        SaveConfig({"TRAIN": SaveConfigMode()})  # type: ignore[dict-item]


def test_reductions_have_a_short_form():
    config = ReductionConfig.from_dict({"reductions": "min, abs_max,l1_norm,abs_l2_norm"})
    assert config.wanted() == [("min", False), ("l1", False), ("max", True), ("l2", True)]
    assert ReductionConfig.from_json(config.to_json()) == config
    with pytest.raises(SMDebugValueError, match="'median'"):
        ReductionConfig.from_dict({"reductions": "median"})


def test_a_collections_file_comes_back(tmp_path: Path):
    manager = CollectionManager()
    manager.add(Collection("one", include_regex=["a", ["b"]], tensor_names=["t"], save_histogram=False))
    manager.add("two")
    manager.get("two").save_config = {modes.EVAL: SaveConfigMode(save_interval=3)}
    manager.set_num_workers(4)
    manager.export(str(tmp_path), "worker_0_collections.json")
    path = tmp_path / "collections/000000000/worker_0_collections.json"
    assert CollectionManager.load(str(path)) == manager
    path.write_text('{"collections": {}, "_meta": {"num_workers": 1}, "more": 1}')
    with pytest.raises(SMDebugValueError, match=r"more.*worker_0_collections\.json"):
        CollectionManager.load(str(path))


def test_collections_refuse_what_is_none():
    with pytest.raises(SMDebugTypeError):
        Collection("c").include(5)
    with pytest.raises(SMDebugTypeError):
        Collection("c").save_config = SaveConfigMode()
    with pytest.raises(SMDebugError, match="there is no collection"):
        CollectionManager().get("nowhere", create=False)
