"""What ``luff run`` records by default of the first step of each mode: what went in, what came out, and the labels.

Those who look at a run later ask for it first. Later steps cost nothing, since nothing is due in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["with_first_step"]

_MAX_BYTES = 4 << 20  # of a value, and of a collection in the steps after the first one
_MAX_COLLECTIONS = 64  # docs/capture.md
_ROLES = {"inputs": "input", "outputs": "output", "labels": "label"}


def with_first_step(config: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the collections ``inputs``, ``outputs`` and ``labels``: values of step 0 of each mode, at most 4 MiB each.

    Those that the configuration names stay as they are. Nothing is added if it has no defaults, or saves everything.
    """
    given = config.get("collections") or []
    if config.get("defaults") is False or config.get("save_all") or not isinstance(given, list):
        return dict(config)
    named = {one.get("name") if isinstance(one, Mapping) else one for one in given}
    more = [
        {
            "name": name,
            "roles": [role],
            "forms": ["raw"],
            "save": {"save_interval": 1, "start_step": 0, "end_step": 1},
            "max_bytes": _MAX_BYTES,
        }
        for name, role in _ROLES.items()
        if name not in named
    ]
    return {**config, "collections": [*given, *more][: max(len(given), _MAX_COLLECTIONS)]}
