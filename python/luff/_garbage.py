"""What Python's collector would find out about one object, were it not in a table of ours.

A table that holds one object for another (the registry: a hook for a model) looks to the collector as if it held the
first for ever; where the first leads back to the second, both stay. Here references are counted as the collector does:
what has more of them than come from within is held from outside, and so is all that it leads to.
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
    """Nothing but what an object leads to holds the things, and nothing but the table the object.

    Parameters
    ----------
    reference
        A weak reference to the object.
    held
        How often the table holds it.
    things
        By their ``id()``.
    table
        Is not looked into.
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
    """What an object leads to, by id; counts the references among it. Nothing, where that is too much."""
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
    """References of its own that a look at one of the objects finds."""
    found = {0: object()}
    return sys.getrefcount(found[0])


_BY_US = _by_us()
