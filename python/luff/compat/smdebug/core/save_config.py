"""When to save, by mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from luff import config
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError
from luff.errors import InvalidArgumentError

__all__ = ["SaveConfig", "SaveConfigMode"]

_KEYS = ("save_interval", "start_step", "end_step", "save_steps")


class SaveConfigMode(config.SaveConfigMode):
    """When to save in one mode: like `luff.config.SaveConfigMode`, with smdebug's errors.

    ``save_steps`` are saved in addition to the interval; ``end_step`` is the first step that is not saved.
    """

    def __init__(
        self,
        save_interval: Any = None,
        start_step: Any = None,
        end_step: Any = None,
        save_steps: list[int] | None = None,
    ) -> None:
        try:
            super().__init__(
                500 if save_interval is None else save_interval,
                0 if start_step is None else start_step,
                end_step,
                save_steps,
            )
        except InvalidArgumentError as error:
            raise SMDebugValueError(str(error)) from None

    @classmethod
    def create_from_json(cls, text: str) -> SaveConfigMode:
        """Makes a configuration from its JSON form."""
        return cls(**{key: value for key, value in json.loads(text).items() if key in _KEYS})

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "save_interval": self.save_interval,
            "save_steps": list(self.save_steps or []),
            "start_step": self.start_step,
            "end_step": self.end_step,
        }


def _mode_of(key: Any) -> ModeKeys:
    if isinstance(key, ModeKeys):
        return key
    if isinstance(key, str) and key in ModeKeys.__members__:
        return ModeKeys[key]
    raise SMDebugValueError(f"found mode {key!r}, expected one of {', '.join(ModeKeys.__members__)}")


class SaveConfig:
    """When to save, for all modes or for each of them.

    Parameters
    ----------
    mode_save_configs
        A `SaveConfigMode` for each mode; a mode that is missing later takes the hook's.
    save_interval, start_step, end_step, save_steps
        For all modes, if `mode_save_configs` is not given.
    """

    def __init__(
        self,
        mode_save_configs: Mapping[ModeKeys, SaveConfigMode | None] | None = None,
        save_interval: Any = None,
        start_step: Any = None,
        end_step: Any = None,
        save_steps: list[int] | None = None,
    ) -> None:
        self.mode_save_configs: dict[ModeKeys, SaveConfigMode | None]
        if mode_save_configs is None:
            self.mode_save_configs = {
                mode: SaveConfigMode(save_interval, start_step, end_step, save_steps) for mode in ModeKeys
            }
            return
        if not isinstance(mode_save_configs, Mapping):
            raise SMDebugTypeError(
                f"found {type(mode_save_configs).__name__}, expected a dict of modes and SaveConfigMode"
            )
        for key, value in mode_save_configs.items():
            if not isinstance(key, ModeKeys):
                raise SMDebugValueError(f"found {key!r} as a mode, expected one of smdebug.modes")
            if value is not None and not isinstance(value, SaveConfigMode):
                raise SMDebugValueError(f"found {value!r} for mode {key.name}, expected a SaveConfigMode")
        self.mode_save_configs = {mode: mode_save_configs.get(mode) for mode in ModeKeys}

    def set_save_config(self, mode: ModeKeys, save_config_mode: SaveConfigMode) -> None:
        """Sets the configuration of one mode."""
        if not isinstance(save_config_mode, SaveConfigMode):
            raise SMDebugTypeError(f"found {save_config_mode!r}, expected a SaveConfigMode")
        self.mode_save_configs[mode] = save_config_mode

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode:
        """Returns the configuration of one mode."""
        found = self.mode_save_configs.get(mode)
        if found is None:
            raise SMDebugValueError(f"there is no save configuration for mode {getattr(mode, 'name', mode)}")
        return found

    def should_save_step(self, mode: ModeKeys, step_num: int) -> bool:
        """Returns whether a step of a mode is saved."""
        return self.get_save_config(mode).should_save_step(step_num)

    def merge_default_save_config(self, default_save_config: SaveConfig) -> None:
        """Gives each mode without a configuration that mode's configuration in the default, or else the usual one."""
        for mode, own in self.mode_save_configs.items():
            if own is None:
                self.mode_save_configs[mode] = (
                    default_save_config.mode_save_configs.get(mode) or SaveConfigMode()
                )

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            mode.name: value.to_json_dict() if value is not None else None
            for mode, value in self.mode_save_configs.items()
        }

    def to_json(self) -> str:
        """Returns the JSON form as text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(
        cls, params: Mapping[Any, Any], default_values: Mapping[str, Any] | None = None
    ) -> SaveConfig:
        """Makes a configuration from its JSON form. `default_values` are for keys that a mode does not give."""
        made: dict[ModeKeys, SaveConfigMode | None] = {}
        for key, value in params.items():
            if value is None or isinstance(value, SaveConfigMode):
                made[_mode_of(key)] = value
                continue
            given = {k: value[k] for k in _KEYS if k in value}
            made[_mode_of(key)] = SaveConfigMode(**{**(default_values or {}), **given})
        return cls(mode_save_configs=made)

    @classmethod
    def from_json(cls, text: str) -> SaveConfig:
        """Makes a configuration from the text of its JSON form."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_save_config_mode(cls, save_config_mode: SaveConfigMode) -> SaveConfig:
        """Makes a configuration that is the same in all modes."""
        return cls(mode_save_configs=dict.fromkeys(ModeKeys, save_config_mode))

    @classmethod
    def parse(cls, save_config: Any) -> SaveConfig | None:
        """Makes a configuration from what users give: None, a `SaveConfig`, a `SaveConfigMode` or a dict."""
        if save_config is None or isinstance(save_config, SaveConfig):
            return save_config
        if isinstance(save_config, SaveConfigMode):
            return cls.from_save_config_mode(save_config)
        if isinstance(save_config, Mapping):
            return cls(mode_save_configs=save_config)
        raise SMDebugTypeError(
            f"found a save configuration of type {type(save_config).__name__}, expected a SaveConfig, "
            "a SaveConfigMode or a dict of modes"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaveConfig) and self.mode_save_configs == other.mode_save_configs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SaveConfig({self.to_json_dict()})"
