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

MOST = 200_000  # objects examined at most: takes about 0.2 s
# everything that these refer to is held from outside
_NOT_ENTERED = (type, types.ModuleType, types.FrameType)


def is_garbage(reference: Any, held: int, things: set[int], table: Any) -> bool:
    """Whether only the object's own references hold the things, and only the table holds the object.

    Parameters
    ----------
    reference
        A weak reference to the object.
    held
        How often the table holds it.
    things
        The things, by their ``id()``.
    table
        The table, whose references are not followed.
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
    """Returns everything that an object refers to, by id, and counts the references. Returns nothing if it is too
    much.
    """
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
    if type(one) is types.FunctionType:  # the names of its module belong to the module
        names = one.__globals__, getattr(one, "__builtins__", None)
        found = [other for other in found if all(other is not name for name in names)]
    return found


def _by_us() -> int:
    """Returns the references that examining an object adds."""
    found = {0: object()}
    return sys.getrefcount(found[0])


_BY_US = _by_us()
