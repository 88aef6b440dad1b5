"""Putting wrappers around methods, and taking away those inside a step while something compiles it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Method", "unwrapped", "wrap"]

Method = Callable[..., Any]
_inner: list[tuple[type, str, Method, Method]] = []


def wrap(owner: type, name: str, make: Callable[[Method], Method], inner: bool = False) -> None:
    """Puts a wrapper around a method.

    Parameters
    ----------
    inner
        It is called while a step is computed: taken away where that is compiled by what would look into it.
    """
    original = getattr(owner, name)
    wrapper = functools.wraps(original)(make(original))
    setattr(owner, name, wrapper)
    if inner:
        _inner.append((owner, name, original, wrapper))


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Without the wrappers of what is called while a step is computed."""
    for owner, name, original, _ in _inner:
        setattr(owner, name, original)
    try:
        yield
    finally:
        for owner, name, _, wrapper in _inner:
            setattr(owner, name, wrapper)
