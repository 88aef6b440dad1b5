"""Finds out whether Python's collector could free an object if one of our tables did not hold it.

To the collector, a table that holds one object for another (the registry: a hook for a model) holds the first one for
ever; if the first refers to the second, both stay. This module counts references as the collector does: an object with
more references than come from within is held from outside, and so is everything that it refers to.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import defaultdict
from typing import Any

__all__ = ["is_garbage"]

MOST = 200_000  # objects that are looked at: some 0.2 s
_NOT_ENTERED = (type, types.ModuleType, types.FrameType)  # what these hold is held from outside


def is_garbage(reference: Any, held: int, things: set[int], table: Any) -> bool:
    """Whether only the object's own references hold the things, and only the table holds the object.

    Parameters
    ----------
    reference
        A weak reference to the object.
    held
        How often the table holds it.
    things
        By their ``id()``.
    table
        Not followed.
    """
    inner: defaultdict[int, int] = defaultdict(int)
    found = _from(reference, table, inner)
    if not things <= found.keys():
        return False
    inner[id(reference())] += held
    reached = {number for number in found if sys.getrefcount(found[number]) > inner[number] + _BY_US}
    waiting = list(reached)
    while waiting:
        for other in _referents(found[waiting.pop()]):
            if id(other) in found and id(other) not in reached:
                reached.add(id(other))
                waiting.append(id(other))
    return not things & reached


def _from(reference: Any, table: Any, inner: defaultdict[int, int]) -> dict[int, Any]:
    """All that an object refers to, by id, with the references among it counted. Nothing if that is too much."""
    found = {id(one): one for one in (reference(),) if one is not None}
    waiting = list(found.values())
    while waiting:
        for other in _referents(waiting.pop()):
            if other is table or issubclass(type(other), _NOT_ENTERED) or not gc.is_tracked(other):
                continue
            inner[id(other)] += 1
            if id(other) not in found:
                found[id(other)] = other
                waiting.append(other)
                if len(found) > MOST:
                    return {}
    return found


def _referents(one: Any) -> list[Any]:
    found = gc.get_referents(one)
    if type(one) is types.FunctionType:  # a module's names are the module's
        names = one.__globals__, one.__builtins__
        found = [other for other in found if all(other is not name for name in names)]
    return found


def _by_us() -> int:
    """References that looking at an object adds by itself."""
    found = {0: object()}
    return sys.getrefcount(found[0])


_BY_US = _by_us()
