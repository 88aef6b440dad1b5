"""What the training thread does, for every framework: phases of a user's own, waits for batches, garbage collections.

`phase` and `wait` cost two calls into C++ each and record nothing themselves: a hook that records steps reads, at the
end of each, how the thread spent its time.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from luff._codes import Phase
from luff._core import collecting, enter_phase, leave_phase
from luff._patch import Method, unseen
from luff.errors import InvalidArgumentError

__all__ = ["during", "listen", "phase", "unlisten", "wait", "waiting"]

T = TypeVar("T")
_DATA_WAIT, _DATA_START = int(Phase.DATA_WAIT), int(Phase.DATA_START)
_OURS = (Phase.LUFF, Phase.TRACE)
#: Names that `phase` takes.
NAMES = tuple(one.name.lower() for one in Phase if one not in _OURS)


class phase:
    """Says what a block of the training's own thread does: the time inside counts for that phase of the step.

    For parts of a loop that Luff cannot see by itself: an evaluation, a checkpoint written by hand, a compiled step.
    A block inside another counts for the inner one. Without a hook nothing is recorded.

        with luff.phase("checkpoint"):
            write(model)

    Parameters
    ----------
    name
        ``"data_wait"``, ``"data_start"``, ``"forward"``, ``"loss"``, ``"backward"``, ``"optimizer"``, ``"clip"``,
        ``"zero_grad"``, ``"scheduler"``, ``"eval"``, ``"checkpoint"``, ``"compile"``, ``"gc"``, ``"compute"`` or
        ``"other"``.

    Raises
    ------
    InvalidArgumentError
        For another name.
    """

    __slots__ = ("_number",)

    def __init__(self, name: str) -> None:
        if name not in NAMES:
            raise InvalidArgumentError(f"luff.phase: found {name!r}, expected one of {', '.join(NAMES)}")
        self._number = int(Phase[name.upper()])

    def __enter__(self) -> None:
        enter_phase(self._number)

    def __exit__(self, *error: object) -> None:
        leave_phase(self._number)


class wait(Generic[T]):
    """Iterates over batches, and counts the time until each of them is there as ``data_wait``.

    For loops over anything but a `DataLoader` of PyTorch, whose waits are seen anyway. It yields the same objects in
    the same order, and can be iterated over again where `batches` can. Asking for the iterator is ``data_start``.

        for batch in luff.wait(batches):
            ...

    Parameters
    ----------
    batches
        What to iterate over.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Iterable[T]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[T]:
        enter_phase(_DATA_START)
        try:
            return _Waiting(iter(self._batches))
        finally:
            leave_phase(_DATA_START)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._batches)  # as without it, also where there is no length

    def __length_hint__(self) -> int:
        return operator.length_hint(self._batches)


class _Waiting(Iterator[T]):
    __slots__ = ("_batches",)

    def __init__(self, batches: Iterator[T]) -> None:
        self._batches = batches

    def __next__(self) -> T:
        enter_phase(_DATA_WAIT)
        try:
            return next(self._batches)
        finally:
            leave_phase(_DATA_WAIT)


def waiting(batches: Iterable[T]) -> Iterator[T]:
    """Returns an iterator over batches, of which each `next` counts as ``data_wait``."""
    return _Waiting(iter(batches))


def during(what: Phase, watched: Any) -> Callable[[Method], Method]:
    """Returns what `luff._patch.wrap` takes: a wrapper whose calls count for a phase.

    `watched` is asked at each call: a registry of hooks, which is false without any.
    """
    number = int(what)

    def make(original: Method) -> Method:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not watched:
                return original(*args, **kwargs)
            enter_phase(number)
            try:
                return original(*args, **kwargs)
            finally:
                leave_phase(number)

        return timed

    return make


def listen() -> None:
    """Listens to Python's collector, from when a hook records."""
    if collecting not in gc.callbacks:
        gc.callbacks.append(collecting)


def unlisten() -> None:
    """No longer listens, after the last hook of the process."""
    try:
        gc.callbacks.remove(collecting)
    except ValueError:  # the training has emptied the list
        pass


unseen(globals())
