"""The configuration of a hook over another one: that of a supervisor, or what rules need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

__all__ = ["merge_configs"]


def merge_configs(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Returns `base` with the keys of `more`, and the collections of both."""
    listed = list(base.get("collections", []))
    for item in more.get("collections", []):
        taken = {one.get("name") for one in listed}
        listed.append(_renamed(item, taken, more) if item.get("name") in taken else item)
    merged = {**base, **more}
    merged["collections"] = listed
    return merged


def _renamed(item: Mapping[str, Any], taken: Container[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a collection whose name is already that of a rule's collection; it keeps what its name stands for."""
    from luff.config import describe

    asked = {key: config[key] for key in ("save", "save_interval") if key in config}
    found = describe(json.dumps({**asked, "collections": [dict(item)]}))
    meant = next((one for one in found if one.get("name") == item["name"]), dict(item))
    number = 2
    while f"{item['name']}_{number}" in taken:
        number += 1
    return {**meant, "name": f"{item['name']}_{number}"}
