"""Decides what a configuration can ever ask for: a graph that is traced once must know it in advance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from luff.config import describe

__all__ = ["Wanted"]

_MAX_KNOWN = 65_536


class Wanted:
    """Checks collections, regardless of the step.

    Parameters
    ----------
    config
        The capture configuration (docs/capture.md).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._collections = [c for c in describe(json.dumps(config)) if c.get("forms")]
        self._known: dict[tuple[str, str], bool] = {}

    def role(self, role: str) -> bool:
        """Whether some collection may take tensors of this role."""
        return any(
            role in c["roles"]
            or c.get("tensor_names")
            or (c["include"] and role in c.get("include_roles", [role]))
            for c in self._collections
        )

    def __call__(self, name: str, role: str, kind: str) -> bool:
        """Whether some collection takes this tensor."""
        key = (name, role)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = any(_takes(c, name, role, kind) for c in self._collections)
        return self._known[key]


def _takes(collection: Mapping[str, Any], name: str, role: str, kind: str) -> bool:
    if name in collection.get("tensor_names", ()):
        return True
    found = role in collection["roles"] and kind in (collection["module_types"] or [kind])
    if not found and role in collection.get("include_roles", [role]):
        found = any(_search(pattern, name) for pattern in collection["include"])
    return found and not any(_search(pattern, name) for pattern in collection.get("exclude", ()))


def _search(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # an expression that only PCRE2 understands: better too much than nothing
        return True
