"""Whether trials take in what is new while one looks at them."""

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
    """Leave a trial, or several, as they are within the block."""
    return _set(trials, False)


def refresh(trials: Any) -> Any:
    """Take in what is new within the block, also where it was off."""
    return _set(trials, True)
