"""The hook's JSON configuration: its meaning, and the errors about a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import luff.compat.smdebug.pytorch as smd
import pytest
from luff.compat.smdebug.exceptions import SMDebugValueError

MODES = smd.modes


def write(tmp_path: Path, **config: Any) -> str:
    path = tmp_path / "hook.json"
    path.write_text(json.dumps({"LocalPath": str(tmp_path / "out"), **config}))
    return str(path)


def test_a_file_with_texts_for_all_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(
        tmp_path,
        S3OutputPath="s3://bucket/prefix",
        HookParameters={
            "train.save_interval": "50",
            "eval.save_interval": "10",
            "save_steps": "1, 2",
            "include_regex": "relu, tanh",
            "include_workers": "all",
            "reductions": "mean,abs_max,l2_norm",
            "save_raw_tensor": "false",
        },
        CollectionConfigurations=[
            {"CollectionName": "gradients"},
            {
                "CollectionName": "relu_in",
                "CollectionParameters": {
                    "include_regex": "relu_input",
                    "save_steps": "0,7",
                    "end_step": "1",
                    "save_histogram": "False",
                },
            },
        ],
    )
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", path)
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is smd.get_hook()
    assert hook.out_dir == str(tmp_path / "out")
    assert hook.include_workers == "all"
    assert hook.include_collections == {"losses", "gradients", "relu_in", "default"}
    assert hook.save_config.get_save_config(MODES.TRAIN).save_interval == 50
    assert hook.save_config.get_save_config(MODES.PREDICT).save_interval == 500
    assert hook.save_config.get_save_config(MODES.EVAL).save_steps == [1, 2]
    assert hook.reduction_config.wanted() == [("mean", False), ("l2", False), ("max", True)]
    assert not hook.reduction_config.save_raw_tensor
    assert hook.get_collection("default").include_regex == ["relu", "tanh"]
    own = hook.get_collection("relu_in")
    assert not own.save_histogram
    train = own.save_config.get_save_config(MODES.TRAIN)
    assert (train.save_interval, train.save_steps, train.end_step) == (50, [0, 7], 1)


def test_without_a_file_there_is_no_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "nowhere.json"))
    assert smd.get_hook(create_if_not_exists=True) is None
    with pytest.raises(FileNotFoundError):
        smd.Hook.create_from_json_file()


def test_hooks_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("USE_SMDEBUG", "false")
    assert smd.get_hook(write(tmp_path), create_if_not_exists=True) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"HookParameter": {}}, "unknown key 'HookParameter' at the top; nearest: 'HookParameters'"),
        (
            {"HookParameters": {"save_intervall": 5}},
            "'save_intervall' at HookParameters; nearest: 'save_interval'",
        ),
        ({"HookParameters": {"save_interval": "often"}}, "'often' for save_interval, expected whole numbers"),
        ({"HookParameters": {"save_all": "yes"}}, "'yes' for save_all, expected true or false"),
        ({"CollectionConfigurations": [{"CollectionNam": "a"}]}, r"at CollectionConfigurations\[0\]"),
        ({"CollectionConfigurations": [{}]}, r"found no CollectionName at CollectionConfigurations\[0\]"),
        (
            {"CollectionConfigurations": [{"CollectionName": "a", "CollectionParameters": {"stop": 1}}]},
            r"'stop' at CollectionConfigurations\[0\].CollectionParameters",
        ),
        ({"CollectionConfigurations": {}}, "found dict at CollectionConfigurations, expected a list"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, config, message):
    with pytest.raises(SMDebugValueError, match=message):
        smd.Hook.create_from_json_file(write(tmp_path, **config))


def test_the_file_is_named(tmp_path: Path):
    path = tmp_path / "hook.json"
    path.write_text("{")
    with pytest.raises(SMDebugValueError, match=r"found no JSON .*hook\.json"):
        smd.Hook.create_from_json_file(str(path))
