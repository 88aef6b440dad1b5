"""Turns refreshing of trials on or off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["no_refresh", "refresh"]


@contextmanager
def _set(trials: Any, on: bool) -> Iterator[Any]:
    listed = trials if isinstance(trials, (list, tuple, set)) else [trials]
    before = [(trial, trial.dynamic_refresh) for trial in listed]
    for trial in listed:
        trial.dynamic_refresh = on
    try:
        yield trials
    finally:
        for trial, was in before:
            trial.dynamic_refresh = was


def no_refresh(trials: Any) -> Any:
    """Turns refreshing of one trial or several off within the block."""
    return _set(trials, False)


def refresh(trials: Any) -> Any:
    """Turns refreshing on within the block, even if it was off."""
    return _set(trials, True)
