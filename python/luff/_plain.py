"""Converts users' settings to JSON values, including NumPy's numbers, tuples, ranges and save configurations."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

from luff.errors import InvalidArgumentError

__all__ = ["plain", "shown", "texts", "whole"]

_MAX_DEPTH = 16
_MAX_ITEMS = 1_000_000
#: Keys of a configuration that hold a list of texts; a single text stands for a list of one.
_LISTS = {
    "exclude",
    "forms",
    "include",
    "include_regex",
    "include_roles",
    "module_types",
    "roles",
    "tensor_names",
}


def shown(value: object) -> str:
    """Formats a value for an error message: short, and even if its `repr` fails."""
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be shown"
    kind = type(value).__name__
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({kind})"


def whole(value: object) -> int | None:
    """Returns a whole number of any kind, including NumPy's; None for anything else, including True and False."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def texts(value: str | Iterable[str], place: str) -> list[str]:
    """Returns a list of texts; a single text becomes a list of one.

    Raises
    ------
    InvalidArgumentError
        For anything else.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        items = list(value)
        if all(isinstance(item, str) for item in items):
            return items
    raise InvalidArgumentError(f"{place} is {shown(value)}, expected a text or a list of texts")


def plain(value: Any, place: str, depth: int = 0) -> Any:
    """Converts a setting to a JSON value.

    Parameters
    ----------
    place
        The setting's name, for the error.

    Raises
    ------
    InvalidArgumentError
        If no configuration can hold the value; the message names the argument.
    """
    if depth > _MAX_DEPTH:
        raise InvalidArgumentError(f"{place} is nested more than {_MAX_DEPTH} deep; a setting is not")
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    number = whole(value)
    if number is not None:
        return number
    if callable(getattr(value, "to_json_dict", None)):  # SaveConfig, SaveConfigMode, Collection
        return plain(value.to_json_dict(), place, depth + 1)
    if isinstance(value, float) or _is_number(value):
        return _finite(value, place)
    if isinstance(value, Mapping):
        return {_key(key, place): _under(key, item, place, depth) for key, item in value.items()}
    return _items(value, place, depth)


def _is_number(value: Any) -> bool:
    """Whether the value is a single number of NumPy or of a tensor library."""
    return getattr(value, "shape", None) == () and callable(getattr(value, "item", None))


def _finite(value: Any, place: str) -> Any:
    number = value if isinstance(value, float) else value.item()
    if isinstance(number, (bool, int, str)):
        return number
    if not isinstance(number, float) or not math.isfinite(number):
        raise InvalidArgumentError(f"{place} is {shown(value)}, expected a finite number")
    return float(number)


def _key(key: object, place: str) -> str:
    if isinstance(key, Enum):
        return key.name  # Mode.TRAIN
    if isinstance(key, str):
        return str(key)
    raise InvalidArgumentError(f"{place} has the key {shown(key)}, expected a text")


def _under(key: Any, value: Any, place: str, depth: int) -> Any:
    where = f"{place}[{_key(key, place)!r}]" if place else str(_key(key, place))
    if key in _LISTS and value is not None:
        if callable(getattr(value, "forms", None)):  # a ReductionConfig
            value = value.forms()
        return texts(value, where)
    return plain(value, where, depth + 1)


def _items(value: Any, place: str, depth: int) -> list[Any]:
    if isinstance(value, AbstractSet):
        value = sorted(value, key=str)
    if callable(getattr(value, "tolist", None)):  # an array
        value = value.tolist()
    if not isinstance(value, (list, tuple, range)):
        raise InvalidArgumentError(
            f"{place} is {shown(value)}, expected a number, a text, a list or a mapping of settings; "
            "docs/capture.md says which"
        )
    if len(value) > _MAX_ITEMS:
        raise InvalidArgumentError(f"{place} has {len(value)} items, expected at most {_MAX_ITEMS}")
    return [plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
