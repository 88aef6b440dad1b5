"""Names for error messages: those that a wrong name was most likely meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["hint", "nearest"]

_COUNT = 3
_LIKENESS = 0.4  # of difflib; below it, a name is no help
_SEARCHED = 20_000  # names that are compared


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the three names nearest to `name`, best first; fewer if only these resemble it.

    Names that contain it come first, whatever the case: people ask for ``loss``.
    """
    known = sorted(names)[:_SEARCHED]
    low = name.lower()
    found = sorted((one for one in known if low and low in one.lower()), key=lambda one: (len(one), one))
    found = found[:_COUNT]
    if len(found) < _COUNT:
        close = difflib.get_close_matches(name, known, n=2 * _COUNT, cutoff=_LIKENESS)
        found += [one for one in close if one not in found]
    return found[:_COUNT]


def hint(name: str, names: Iterable[str]) -> str:
    """Returns ``; nearest: 'a', 'b', 'c'`` for the end of a sentence; empty if no name resembles it."""
    found = nearest(name, names)
    return f"; nearest: {', '.join(map(repr, found))}" if found else ""
