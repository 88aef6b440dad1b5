"""Maps things to values by identity. A bare ``id()`` does not identify a thing: Python reuses it for the next one."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

__all__ = ["Identities"]

V = TypeVar("V")


class _Key(weakref.ref[Any]):
    __slots__ = ("key",)
    key: int


class Identities(Generic[V]):
    """A mapping by identity, also for unhashable things; an entry goes when its thing does."""

    def __init__(self) -> None:
        entries: dict[int, tuple[_Key, V]] = {}
        self._entries = entries

        def gone(reference: Any) -> None:
            found = entries.get(reference.key)
            if found is not None and found[0] is reference:
                del entries[reference.key]

        self._gone = gone

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, thing: object) -> bool:
        found = self._entries.get(id(thing))
        return found is not None and found[0]() is thing

    def __setitem__(self, thing: Any, value: V) -> None:
        reference = _Key(thing, self._gone)
        reference.key = id(thing)
        self._entries[id(thing)] = (reference, value)

    def get(self, thing: object) -> V | None:
        """Returns the value of a thing, or None."""
        found = self._entries.get(id(thing))
        return found[1] if found is not None and found[0]() is thing else None

    def pop(self, thing: object) -> V | None:
        """Removes a thing; returns its value, or None."""
        return self._entries.pop(id(thing))[1] if thing in self else None

    def with_value(self, value: object) -> set[int]:
        """Returns the things with exactly this value, by their ``id()``."""
        return {number for number, entry in list(self._entries.items()) if entry[1] is value}

    def forget(self, value: object) -> None:
        """Removes the things with exactly this value."""
        for number in self.with_value(value):
            self._entries.pop(number, None)

    def things(self) -> list[Any]:
        """Returns the things, in the order in which they were put in."""
        return [
            thing for thing in (entry[0]() for entry in list(self._entries.values())) if thing is not None
        ]

    def values(self) -> list[V]:
        """Returns the values, in the same order."""
        return [entry[1] for entry in list(self._entries.values()) if entry[0]() is not None]

    def clear(self) -> None:
        """Removes all entries."""
        self._entries.clear()
