"""Wraps functions of frameworks so that they also notify Luff: the only way to install and remove such wrappers.

A wrapper is installed once and stays; without a hook it costs one test. Others may patch the same function, before or
after us: wrappers around ours stay in place, and ours calls the ones inside it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

__all__ = ["Method", "once", "unseen", "unwrapped", "wrap"]

Method = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., None])
_lock = threading.RLock()
_MISSING: Any = object()


class _Inner:
    """A wrapper that is removed while a compiler looks inside the wrapped function."""

    def __init__(
        self, owner: Any, name: str, original: Method, own: Any, make: Callable[[Method], Method]
    ) -> None:
        self.owner, self.name, self.make = owner, name, make
        self.original = original
        self.own = own  # the owner's own attribute; _MISSING if it is inherited
        self.wrapper: Method = _wrapper(original, make)
        self.out = False

    def put_in(self) -> None:
        """Installs the wrapper, around those that others have installed meanwhile."""
        now = getattr(self.owner, self.name)
        if now is not self.original:
            self.original = self.own = now
            self.wrapper = _wrapper(now, self.make)
        setattr(self.owner, self.name, self.wrapper)
        self.out = False

    def take_out(self) -> None:
        """Removes the wrapper, unless others have wrapped it: then theirs stays, with ours inside."""
        if vars(self.owner).get(self.name) is not self.wrapper:
            return
        if self.own is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)
        self.out = True


_inner: list[_Inner] = []
_depth = 0


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held the lock


os.register_at_fork(after_in_child=_after_fork)


# `warnings` and `logging` do not count frames whose file's name holds both words: those of the import system.
_UNCOUNTED = " (importlib _bootstrap)"


def unseen(module: dict[str, Any]) -> None:
    """Keeps a module's functions out of the frames that ``stacklevel`` counts.

    A warning names the line that its ``stacklevel`` leads to, and the default filter shows it once for each line. A
    wrapper in between would make that line Luff's. Called at the end of a module that wraps, with its ``globals()``.
    """
    for value in list(module.values()):
        if isinstance(value, FunctionType) and value.__module__ == module["__name__"]:
            value.__code__ = _uncounted(value.__code__)


def _uncounted(code: CodeType) -> CodeType:
    inner = tuple(_uncounted(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    name = code.co_filename
    return code.replace(co_filename=name if name.endswith(_UNCOUNTED) else name + _UNCOUNTED, co_consts=inner)


def once(install: F) -> F:
    """Makes an installing function run only once per process for the same arguments."""
    done: set[tuple[Any, ...]] = set()

    @functools.wraps(install)
    def installed(*arguments: Any) -> None:
        if arguments not in done:
            with _lock:
                if arguments not in done:
                    install(*arguments)
                    done.add(arguments)

    return installed  # type: ignore[return-value]


def _wrapper(original: Method, make: Callable[[Method], Method]) -> Method:
    made = make(original)
    return made if hasattr(made, "__wrapped__") else functools.wraps(original)(made)


def wrap(
    owner: Any, name: str, make: Callable[[Method], Method], inner: bool = False, also: Iterable[Any] = ()
) -> None:
    """Wraps a function of a class or a module.

    Parameters
    ----------
    make
        Takes a function and returns its wrapper.
    inner
        Whether the function is called while a step is computed: its wrapper is removed while a compiler runs that
        looks inside.
    also
        Modules that may have the same function under the same name; None stands for one that is not imported.
    """
    original = getattr(owner, name)
    if not inner:
        wrapper = _wrapper(original, make)
        setattr(owner, name, wrapper)
        for one in also:
            if getattr(one, name, None) is original:
                setattr(one, name, wrapper)
        return
    known = _Inner(owner, name, original, vars(owner).get(name, _MISSING), make)
    known.put_in()
    _inner.append(known)


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Removes the wrappers of functions that are called while a step is computed, for a block."""
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            for one in _inner:
                one.take_out()
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for one in _inner:
                    if one.out:
                        one.put_in()
