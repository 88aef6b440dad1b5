"""What is captured, and when: collections, save configurations, reductions.

The classes work like those of SageMaker Debugger and produce the JSON that the C++ library reads (docs/capture.md).
Pass collections to ``attach(..., collections=[...])``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from luff._codes import Mode
from luff._core import check_config
from luff._plain import plain, shown, texts, whole
from luff.errors import InvalidArgumentError

__all__ = [
    "CaptureOptions",
    "Collection",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "describe",
    "to_json",
]

_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
_REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod")
_NORMS = ("l1", "l2")
# Reductions that a summary does not contain.
_EXTRA = {("prod", False), ("prod", True), ("min", True)}


def _integer(name: str, value: object) -> int:
    number = whole(value)
    if number is not None:
        return number
    try:
        return int(value) if isinstance(value, str) else int("")
    except ValueError:
        raise InvalidArgumentError(f"{name} is {shown(value)}, expected a whole number") from None


def _steps(value: object) -> list[int]:
    as_list = getattr(value, "tolist", None)
    items = as_list() if callable(as_list) else value
    numbers = [whole(item) for item in items] if isinstance(items, (list, tuple, range, set)) else [None]
    if None in numbers:
        raise InvalidArgumentError(f"save_steps is {shown(value)}, expected a list of whole numbers")
    return [number for number in numbers if number is not None]


class CaptureOptions(TypedDict, total=False):
    """Settings of a capture (docs/capture.md): keyword arguments of `attach` and call-backs in all frameworks."""

    save: SaveConfig | SaveConfigMode | Mapping[str, Any]
    save_interval: int
    start_step: int
    end_step: int | None
    save_steps: Iterable[int]
    defaults: bool
    save_all: bool
    include_regex: str | Iterable[str]
    max_overhead: float
    max_bytes: int
    summary_max_bytes: int
    pool_max_bytes: int
    direct_io: str
    sync: str
    events: bool
    profile: str
    stalled_after_s: float
    accelerators: bool
    rules: bool | str | list[str] | tuple[str, ...]
    on_finding: str
    upload: str


@dataclass(eq=True)
class SaveConfigMode:
    """When to save in one mode.

    Parameters
    ----------
    save_interval
        Saves every step that is a multiple of it, within the bounds.
    start_step, end_step
        First step, and the step before which saving ends (None: never). They do not shift the interval.
    save_steps
        Steps to save in addition to the interval.
    """

    save_interval: int = 500
    start_step: int = 0
    end_step: int | None = None
    save_steps: list[int] | None = None

    def __post_init__(self) -> None:
        self.save_interval = _integer("save_interval", self.save_interval)
        if self.save_interval < 1:
            raise InvalidArgumentError(f"save_interval is {self.save_interval}, expected at least 1")
        self.start_step = _integer("start_step", self.start_step)
        if self.end_step is not None:
            self.end_step = _integer("end_step", self.end_step)
        self.save_steps = _steps(self.save_steps) if self.save_steps is not None else []

    def should_save_step(self, step: int) -> bool:
        """Whether a step is listed, or within the bounds and a multiple of the interval. Negative steps are never
        saved.
        """
        if step < 0:
            return False
        if self.save_steps and step in self.save_steps:
            return True
        return (
            step >= self.start_step
            and (self.end_step is None or step < self.end_step)
            and step % self.save_interval == 0
        )

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "save_interval": self.save_interval,
            "start_step": self.start_step,
            "end_step": self.end_step,
            "save_steps": list(self.save_steps or []),
        }


class SaveConfig:
    """When to save, by mode.

    Parameters
    ----------
    mode_save_configs
        A `SaveConfigMode` for each `Mode` or mode name; missing modes use the run's defaults.
    save_interval, start_step, end_step, save_steps
        The same for all modes, if `mode_save_configs` is not given.
    """

    def __init__(
        self,
        mode_save_configs: Mapping[Mode | str, SaveConfigMode | None] | None = None,
        *,
        save_interval: int | None = None,
        start_step: int | None = None,
        end_step: int | None = None,
        save_steps: list[int] | None = None,
    ) -> None:
        self.modes: dict[str, SaveConfigMode | None] = {}
        if mode_save_configs is not None:
            for mode, config in mode_save_configs.items():
                self.set_save_config(mode, config)
            return
        for name in _MODES:
            self.modes[name] = SaveConfigMode(
                500 if save_interval is None else save_interval,
                0 if start_step is None else start_step,
                end_step,
                save_steps,
            )

    def set_save_config(self, mode: Mode | str, config: SaveConfigMode | None) -> None:
        """Sets one mode's configuration; None means the run's default."""
        name = mode.name if isinstance(mode, Mode) else mode
        if name not in _MODES:
            raise InvalidArgumentError(f"mode is {mode!r}, expected one of {', '.join(_MODES)}")
        if config is not None and not isinstance(config, SaveConfigMode):
            raise InvalidArgumentError(
                f"the save configuration of {name} is {config!r}, expected a SaveConfigMode"
            )
        self.modes[name] = config

    def get_save_config(self, mode: Mode | str) -> SaveConfigMode:
        """Returns one mode's configuration.

        Raises
        ------
        InvalidArgumentError
            If the mode has no configuration of its own.
        """
        name = mode.name if isinstance(mode, Mode) else mode
        config = self.modes.get(name)
        if config is None:
            raise InvalidArgumentError(
                f"no save configuration for mode {name}; known: {', '.join(self.modes)}"
            )
        return config

    def should_save_step(self, mode: Mode | str, step: int) -> bool:
        """Whether a mode step is saved."""
        return self.get_save_config(mode).should_save_step(step)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {name: config.to_json_dict() if config else None for name, config in self.modes.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaveConfig) and self.modes == other.modes

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=True)
class ReductionConfig:
    """Which numbers of a tensor are kept instead of, or in addition to, its values.

    Most reductions come from one summary, computed in one pass; `prod`, `abs_prod` and `abs_min` are kept separately.
    Standard deviation and variance divide by n; norms are those of the flattened tensor.
    """

    reductions: list[str] | None = None
    abs_reductions: list[str] | None = None
    norms: list[str] | None = None
    abs_norms: list[str] | None = None
    save_raw_tensor: bool = False
    save_shape: bool = False

    def __post_init__(self) -> None:
        for field_name, allowed in (
            ("reductions", _REDUCTIONS),
            ("abs_reductions", _REDUCTIONS),
            ("norms", _NORMS),
            ("abs_norms", _NORMS),
        ):
            given = getattr(self, field_name)
            values = texts(given, field_name) if given is not None else []
            for value in values:
                if value not in allowed:
                    raise InvalidArgumentError(
                        f"{field_name} has {value!r}, expected some of {', '.join(allowed)}"
                    )
            setattr(self, field_name, values)
        for field_name in ("save_raw_tensor", "save_shape"):
            if not isinstance(getattr(self, field_name), bool):
                raise InvalidArgumentError(
                    f"{field_name} is {getattr(self, field_name)!r}, expected True or False"
                )

    def forms(self) -> list[str]:
        """Returns the forms that contain these reductions."""
        wanted = {(name, False) for name in self.reductions or []} | {
            (name, True) for name in self.abs_reductions or []
        }
        out = []
        if wanted - _EXTRA or self.norms or self.abs_norms:
            out.append("summary")
        if self.save_raw_tensor:
            out.append("raw")
        if wanted & _EXTRA:
            out.append("extra")
        if self.save_shape:
            out.append("shape")
        return out


class Collection(Mapping[str, Any]):
    """Tensors grouped by name, role or module type, with their own forms and save configuration.

    As a mapping it equals its JSON form, so it can be passed wherever a collection is accepted.

    Parameters
    ----------
    name
        Must be unique. ``weights``, ``biases``, ``gradients``, ``losses``, ``inputs``, ``outputs``, ``buffers``,
        ``optimizer_state``, ``labels``, ``metrics``, ``optimizer_variables``, ``predictions``, ``output_gradients``,
        ``input_gradients``, ``attention`` and ``all`` need no expression.
    include, exclude
        Regular expressions, searched anywhere in the tensor's name.
    include_roles
        Roles of the tensors that `include` is matched against; default: all but ``output_gradient``,
        ``input_gradient`` and ``attention``. If an expression may match inputs or
        outputs of modules, the hook looks at each of their calls.
    tensor_names
        Exact names.
    roles, module_types
        Tensors of these roles; if module types are given, only those of modules of these types.
    forms
        What is kept: ``summary``, ``raw``, ``histogram``, ``hash``, ``units``, ``difference``, ``extra``, ``shape``.
        Default: summary and raw.
    reduction_config
        Another way to give `forms`.
    save_config
        When to save; default: the run's.
    unit_axis
        For the form ``units``: ``channel``, ``last`` or ``all_but_first``.
    keep
        ``"all"``, ``"thin"`` or ``{"last": K}``.
    max_bytes
        Limit of raw bytes; 0 means no limit.
    policy
        What to do when memory is short: ``degrade``, ``block`` or ``drop``.
    """

    def __init__(
        self,
        name: str,
        include: str | Iterable[str] | None = None,
        *,
        exclude: str | Iterable[str] | None = None,
        include_roles: Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        roles: Iterable[str] | None = None,
        module_types: Iterable[str] | None = None,
        forms: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | SaveConfigMode | Mapping[str, Any] | None = None,
        save_histogram: bool = False,
        unit_axis: str | None = None,
        keep: str | Mapping[str, int] | None = None,
        max_bytes: int = 0,
        policy: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"the name of a collection is {name!r}, expected a word")
        if forms is not None and reduction_config is not None:
            raise InvalidArgumentError(
                f"collection {name!r} has forms and reduction_config; give one of them"
            )
        self.name = name
        self._json: dict[str, Any] = {"name": name}
        for key, value in (("include", include), ("exclude", exclude)):
            if value is not None:
                self._json[key] = texts(value, f"{key} of collection {name!r}")
        for key, names in (
            ("include_roles", include_roles),
            ("tensor_names", tensor_names),
            ("roles", roles),
            ("module_types", module_types),
        ):
            if names is not None:
                self._json[key] = sorted(texts(names, f"{key} of collection {name!r}"))
        chosen = reduction_config.forms() if reduction_config is not None else forms
        if chosen is not None or save_histogram:
            self._json["forms"] = texts(
                chosen if chosen is not None else ("summary", "raw"), f"forms of collection {name!r}"
            )
            if save_histogram and "histogram" not in self._json["forms"]:
                self._json["forms"].append("histogram")
        if isinstance(save_config, (SaveConfig, SaveConfigMode)):
            self._json["save"] = save_config.to_json_dict()
        elif save_config is not None:
            self._json["save"] = plain(save_config, f"save_config of collection {name!r}")
        if unit_axis is not None:
            self._json["unit_axis"] = unit_axis
        if keep is not None:
            self._json["keep"] = plain(keep, f"keep of collection {name!r}")
        if max_bytes:
            self._json["max_bytes"] = plain(max_bytes, f"max_bytes of collection {name!r}")
        if policy is not None:
            self._json["policy"] = policy

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return dict(self._json)

    def __getitem__(self, key: str) -> Any:
        return self._json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)

    def __repr__(self) -> str:
        return f"Collection({self._json})"


def to_json(collections: Iterable[Collection | Mapping[str, Any]] = (), **settings: Any) -> str:
    """Returns the capture configuration as JSON, checked.

    Parameters
    ----------
    collections
        Collections, or their JSON forms.
    **settings
        Other keys of docs/capture.md, e.g. ``save_interval`` or ``max_overhead``.

    Raises
    ------
    InvalidArgumentError
        Names the key that is wrong, its place and the nearest known key.
    """
    record: dict[str, Any] = plain(settings, "")
    listed = [plain(collection, f"collections[{index}]") for index, collection in enumerate(collections)]
    if listed:
        record["collections"] = listed
    text = json.dumps(record)
    check_config(text)
    return text


def describe(config_json: str = "") -> list[dict[str, Any]]:
    """Returns the collections of a configuration, with every default filled in."""
    out: list[dict[str, Any]] = json.loads(check_config(config_json))
    return out
