"""Collections of a boosting run, and the capture configuration made from a hook's arguments.

Names and expressions are those of SageMaker Debugger, with two of its mistakes corrected: names of evaluation sets
may contain digits (scikit-learn's ``validation_0``), and of SHAP values only the bias is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from luff._base_hook import SCHEDULE, Collections, choose_run, listed
from luff._hook import RunOptions
from luff._plain import plain
from luff.config import describe

__all__ = ["COLLECTIONS", "DEFAULT_INTERVAL", "Wanted", "choose_boosting_run", "make_config", "number_in"]

#: Rounds between two saves of the collections that are listed.
DEFAULT_INTERVAL = 10

#: Collections by name: regular expressions for tensor names, and the forms that are kept.
COLLECTIONS: dict[str, dict[str, Any]] = {
    "hyperparameters": {"include": [r"(^|/)hyperparameters/"], "forms": ["raw"]},
    "metrics": {"include": [r"(^|/)[^/]+-[^/]+$"], "forms": ["summary"], "save": {"save_interval": 1}},
    "losses": {
        "include": [r"(^|/)[^/]+-[^/]+(?<!(auc|map))$"],
        "forms": ["summary"],
        "save": {"save_interval": 1},
    },
    "predictions": {"include": [r"(^|/)predictions$"], "forms": ["raw"]},
    "labels": {"include": [r"(^|/)labels$"], "forms": ["raw"]},
    "feature_importance": {"include": [r"(^|/)feature_importance/"], "forms": ["summary"]},
    "average_shap": {"include": [r"(^|/)average_shap/(?!bias$)"], "forms": ["summary"]},
    "full_shap": {"include": [r"(^|/)full_shap/(?!bias$)"], "forms": ["raw"]},
    "trees": {"include": [r"(^|/)trees/"], "forms": ["raw"]},
}


def make_config(
    collections: Collections,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes the capture configuration from a hook's arguments."""
    wanted = listed(collections)
    chosen = [{**COLLECTIONS.get(item["name"], {}), **item} for item in wanted if "name" in item]
    # kept, so that the configuration check reports them
    chosen += [item for item in wanted if "name" not in item]
    if options.get("save_all"):
        for name, settings in COLLECTIONS.items():
            if all(item.get("name") != name for item in chosen):
                chosen.append({"name": name, **settings})
    if all(item.get("name") != "metrics" for item in chosen):
        chosen.append({"name": "metrics", **COLLECTIONS["metrics"]})
    save = {key: options[key] for key in SCHEDULE if key in options}
    config: dict[str, Any] = {
        "defaults": False,
        "collections": chosen,
        "save": {"save_interval": DEFAULT_INTERVAL, **save},
    }
    config.update({key: value for key, value in options.items() if key not in save})
    return plain(config, "")  # type: ignore[no-any-return]


class Wanted:
    """Decides which tensors a configuration can ask for at all; the others are never looked at or named.

    It never rejects a tensor that the session would take: an expression that Python cannot compile matches
    everything.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._collections: list[tuple[set[str], set[str], list[re.Pattern[str] | None]]] = []
        for one in describe(json.dumps(config) if config else ""):
            if one.get("forms"):
                patterns = [_compiled(text) for text in one.get("include", ())]
                self._collections.append(
                    (set(one.get("roles", ())), set(one.get("tensor_names", ())), patterns)
                )
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, name: str, role: str = "other") -> bool:
        """True if a tensor of this name and role may be saved."""
        known = self._known.get((name, role))
        if known is None:
            known = any(
                role in roles or name in names or any(p is None or p.search(name) for p in patterns)
                for roles, names, patterns in self._collections
            )
            if len(self._known) < 1 << 16:
                self._known[name, role] = known
        return known


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


def choose_boosting_run(
    run: str | os.PathLike[str] | None, collections: Collections, resume: bool, options: Mapping[str, Any]
) -> RunOptions:
    """Chooses the run for a hook's arguments and makes its capture configuration."""
    return choose_run(run, resume, make_config(collections, options), _merge(collections, options))


def _merge(collections: Any, options: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Returns the function that merges the hook's configuration into the supervisor's, whose collections win."""

    def merge(base: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        if collections is None and not options:
            return base
        known = {item.get("name") for item in base.get("collections", [])}
        fresh = [item for item in config["collections"] if item.get("name") not in known]
        config["collections"] = [*base.get("collections", []), *fresh]
        return {**base, **config, "defaults": base.get("defaults", True)}

    return merge


def number_in(text: str) -> int | float | str:
    """Converts a parameter from the library's text to a number, if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
