"""Results that nobody uses, by the sources of the functions that run: around the first updates and backward passes, and
where loaders start.
"""

from __future__ import annotations

import sys
from typing import Any

from luff.torch.evidence._events import WaitingEvents
from luff.torch.source._look import Sources

__all__ = ["UnusedResults"]

_LOOKS = 16  # at the stack
_MOST = 16  # events


class UnusedResults(WaitingEvents):
    """Looks at the stack a few times, under the hook's lock and guard.

    Attributes
    ----------
    on
        It still looks.
    began
        It has looked, at a backward pass or an update: a loader's start has no batch yet, whose names would be of use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on, self.began = True, False
        self._sources = Sources()
        self._looks = self._told = 0

    def look(self, models: list[Any]) -> None:
        """Called where something happens in a function of the user's."""
        self._looks += 1
        self.began = True
        try:
            found = self._sources.look(sys._getframe(1), models)
        except Exception:  # sources of a form that nobody has thought of
            self.on = False
            return
        self.waiting.extend(found[: _MOST - self._told])
        self._told += len(found)
        self.on = self._looks < _LOOKS and self._told < _MOST and not self._sources.over
