"""The hook's configuration as a JSON file, as the platform writes it. Values may be texts.

An unknown key is an error, which names the file, the place and the nearest known key.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from luff.compat.smdebug.core.config_constants import (
    CONFIG_FILE_PATH_ENV_STR,
    DEFAULT_CONFIG_FILE_PATH,
    DEFAULT_RESOURCE_CONFIG_FILE,
    DEFAULT_SAGEMAKER_OUTDIR,
    DEFAULT_SAGEMAKER_TENSORBOARD_PATH,
    TENSORBOARD_CONFIG_FILE_PATH_ENV_STR,
)
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reduction_config import ReductionConfig
from luff.compat.smdebug.core.sagemaker_utils import is_sagemaker_job
from luff.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugValueError

__all__ = [
    "CONFIG_FILE_PATH_ENV_STR",
    "DEFAULT_RESOURCE_CONFIG_FILE",
    "DEFAULT_SAGEMAKER_OUTDIR",
    "add_collections_to_manager",
    "collect_hook_config_params",
    "create_hook_from_json_config",
    "get_include_collections",
    "get_json_config_as_dict",
]

_SAVE = ("save_interval", "start_step", "end_step", "save_steps")
_SAVE_KEYS = {*_SAVE, *(f"{mode.name.lower()}.{key}" for mode in ModeKeys for key in _SAVE)}
_REDUCTION_KEYS = {"reductions", "save_raw_tensor", "save_shape"}
_TOP = {"LocalPath", "S3OutputPath", "S3Path", "HookParameters", "CollectionConfigurations"}
_JOB = {
    "DebugHookConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig", "ProfilerConfig",
    "ProfilerRuleConfigurations",
}  # fmt: skip
_HOOK = _SAVE_KEYS | _REDUCTION_KEYS | {
    "save_all", "include_regex", "include_workers", "include_collections", "export_tensorboard", "tensorboard_dir",
    "dry_run",
}  # fmt: skip
_COLLECTION = {"CollectionName", "CollectionParameters"}
_COLLECTION_PARAMETERS = _SAVE_KEYS | _REDUCTION_KEYS | {"include_regex", "save_histogram"}


def known_keys(given: Any, known: Iterable[str], place: str) -> dict[str, Any]:
    """Returns `given` if it is an object with known keys only; raises an error otherwise."""
    if not isinstance(given, dict):
        raise SMDebugValueError(f"found {type(given).__name__} at {place}, expected an object")
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise SMDebugValueError(
                f"found the unknown key {key!r} at {place}{hint}; remove it or use one of docs/migrate/smdebug.md"
            )
    return given


def get_json_config_as_dict(json_config_path: str | None = None) -> dict[str, Any]:
    """Reads and checks the configuration in a file, by default the file that SMDEBUG_CONFIG_FILE_PATH names.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    SMDebugValueError
        If it is not such a configuration; the message says where.
    """
    path = json_config_path or os.environ.get(CONFIG_FILE_PATH_ENV_STR, DEFAULT_CONFIG_FILE_PATH)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SMDebugValueError(
            f"found no JSON ({error}), expected the configuration of a hook: {path}"
        ) from None
    try:
        return hook_of_job(check_job(found))
    except SMDebugError as error:
        raise SMDebugValueError(f"{error}: {path}") from None


def check_job(found: Any) -> dict[str, Any]:
    """Returns the configuration of a job, or of its hook alone, as that of a job; checks the hook's keys."""
    if not isinstance(found, dict) or "DebugHookConfig" not in found:
        return {"DebugHookConfig": check_config(found)}
    known_keys(found, _JOB, "the top")
    check_config(found["DebugHookConfig"])
    known_keys(
        found.get("TensorBoardOutputConfig") or {}, {"LocalPath", "S3OutputPath"}, "TensorBoardOutputConfig"
    )
    return dict(found)


def hook_of_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hook's part of a job's configuration, with the job's directory for TensorBoard."""
    hook = dict(job["DebugHookConfig"])
    place = (job.get("TensorBoardOutputConfig") or {}).get("LocalPath")
    if place:
        hook["HookParameters"] = {"tensorboard_dir": place, **(hook.get("HookParameters") or {})}
    return hook


def check_config(found: Any) -> dict[str, Any]:
    """Returns the configuration; raises an error if any of its keys is unknown."""
    known_keys(found, _TOP, "the top")
    known_keys(found.get("HookParameters") or {}, _HOOK, "HookParameters")
    listed = found.get("CollectionConfigurations")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise SMDebugValueError(f"found {type(listed).__name__} at CollectionConfigurations, expected a list")
    for number, item in enumerate(listed):
        place = f"CollectionConfigurations[{number}]"
        known_keys(item, _COLLECTION, place)
        if not isinstance(item.get("CollectionName"), str):
            raise SMDebugValueError(f"found no CollectionName at {place}, expected a name")
        known_keys(
            item.get("CollectionParameters") or {}, _COLLECTION_PARAMETERS, f"{place}.CollectionParameters"
        )
    return dict(found)


def _boolean(value: Any, key: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise SMDebugValueError(f"found {value!r} for {key}, expected true or false")


def split(text: Any) -> list[str]:
    """Splits a text at its commas."""
    items = text if isinstance(text, list) else str(text).split(",")
    return [str(item).strip() for item in items if str(item).strip()]


def _save_keys(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in _SAVE:
        value = params.get(prefix + key)
        if value is None:
            continue
        try:
            out[key] = [int(part) for part in split(value)] if key == "save_steps" else int(value)
        except ValueError:
            raise SMDebugValueError(f"found {value!r} for {prefix}{key}, expected whole numbers") from None
    return out


def _by_mode(
    params: Mapping[str, Any], base: Mapping[ModeKeys, Mapping[str, Any]]
) -> dict[ModeKeys, dict[str, Any]]:
    general = _save_keys(params)
    return {
        mode: {**base.get(mode, {}), **general, **_save_keys(params, f"{mode.name.lower()}.")}
        for mode in ModeKeys
    }


def _save_config(by_mode: Mapping[ModeKeys, Mapping[str, Any]]) -> SaveConfig:
    return SaveConfig({mode: SaveConfigMode(**keys) for mode, keys in by_mode.items()})


def save_config_of(params: Mapping[str, Any], base: Mapping[ModeKeys, Mapping[str, Any]]) -> SaveConfig:
    """Returns when a collection is saved; `base` are the settings for all collections."""
    return _save_config(_by_mode(params, base))


def reduction_config(params: Mapping[str, Any]) -> ReductionConfig | None:
    """Returns the reductions that the parameters ask for; None if they have no such key."""
    if not any(key in params for key in _REDUCTION_KEYS):
        return None
    given = dict(params)
    for key in ("save_raw_tensor", "save_shape"):
        if key in given:
            given[key] = _boolean(given[key], key)
    if "reductions" not in given and "save_raw_tensor" not in given:
        given["save_raw_tensor"] = True  # save shapes in addition to the values, not instead of them
    return ReductionConfig.from_dict(given)


def _tensorboard_on_platform() -> str | None:
    path = os.environ.get(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR, DEFAULT_SAGEMAKER_TENSORBOARD_PATH)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file).get("LocalPath")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def collect_hook_config_params(
    params: Mapping[str, Any], default_values: Mapping[str, Any] | None = None, **_: Any
) -> dict[str, Any]:
    """Converts a configuration to the hook's arguments; ``save_explicit`` are the keys given for each mode."""
    given = params.get("HookParameters") or {}
    out: dict[str, Any] = {
        "out_dir": params.get("LocalPath") or DEFAULT_SAGEMAKER_OUTDIR,
        "include_workers": given.get("include_workers", "one"),
        "save_all": _boolean(given.get("save_all", False), "save_all"),
        "include_regex": split(given["include_regex"]) if given.get("include_regex") else None,
        "reduction_config": reduction_config(given),
        "export_tensorboard": _boolean(given.get("export_tensorboard", False), "export_tensorboard"),
        "tensorboard_dir": given.get("tensorboard_dir"),
        "dry_run": _boolean(given.get("dry_run", False), "dry_run"),
    }
    if is_sagemaker_job():
        out["tensorboard_dir"] = _tensorboard_on_platform()
        out["export_tensorboard"] = out["tensorboard_dir"] is not None
    out["save_explicit"] = _by_mode(given, {})
    defaults = {mode: dict(default_values or {}) for mode in ModeKeys}
    out["save_config"] = _save_config(_by_mode(given, defaults))
    return out


def get_include_collections(params: Mapping[str, Any]) -> list[str] | None:
    """Returns the names of the listed collections; None if there is no list."""
    listed = params.get("CollectionConfigurations")
    if listed is None:
        return None
    return [item["CollectionName"] for item in listed]


def add_collections_to_manager(
    collection_manager: Any, params: Mapping[str, Any], hook_params: Mapping[str, Any]
) -> None:
    """Configures the listed collections."""
    for item in params.get("CollectionConfigurations") or []:
        collection = collection_manager.get(item["CollectionName"])
        given = item.get("CollectionParameters") or {}
        if given.get("include_regex"):
            collection.include(split(given["include_regex"]))
        if any(key in given for key in _SAVE_KEYS):
            collection.save_config = save_config_of(given, hook_params["save_explicit"])
        reduction = reduction_config(given)
        if reduction is not None:
            collection.reduction_config = reduction
        if "save_histogram" in given:
            collection.save_histogram = _boolean(given["save_histogram"], "save_histogram")


def create_hook_from_json_config(
    hook_cls: Any, json_config_path: str | None = None, default_values: Mapping[str, Any] | None = None
) -> Any:
    """Makes the hook that a file describes."""
    params = get_json_config_as_dict(json_config_path)
    arguments = collect_hook_config_params(params, default_values)
    explicit = arguments.pop("save_explicit")
    hook = hook_cls(include_collections=get_include_collections(params), **arguments)
    add_collections_to_manager(hook.collection_manager, params, {"save_explicit": explicit})
    return hook
