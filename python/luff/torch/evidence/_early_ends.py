"""Updates that stand in a loop which never comes round: a `for` whose body always ends with `break` or `return`, so
that each pass over the data ends behind its first batch.

The innermost loop around an update counts, through the functions that lead to it: a loop over folds of which only the
first is trained has loops over epochs and batches within. Not where another loader stands amid its pass, as that of
samples without labels beside one that gives a batch with labels for each of theirs. Looked at after 1, 2, 4, 8, …
updates of an optimizer, in the bytecode of the functions; touches no tensor.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

from luff.torch.evidence._events import WaitingEvents

__all__ = ["EarlyEnds", "loop_around"]

_FRAMES = 32  # around an update that are looked at
_MOST_CODE = 1 << 16  # bytes of a function
_KNOWN = 64  # places that are remembered
_PREFIX = 6  # bytes of the prefixes that an instruction with a large argument may have


def loop_around(code: CodeType, at: int) -> tuple[bool, int] | None:
    """Returns whether the innermost loop around an instruction comes round, and its first line; None without a loop."""
    loops: list[tuple[int, int, int]] = []  # first and last byte, line
    fors: list[tuple[int, int, int]] = []
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    lines: dict[int, int] = {}
    for one in dis.get_instructions(code):
        line = starts.get(one.offset) or line
        lines[one.offset] = line
        if one.opname == "FOR_ITER":
            fors.append((one.offset, int(one.argval), line))
        elif (one.opcode in dis.hasjrel or one.opcode in dis.hasjabs) and int(one.argval) <= one.offset:
            loops.append((int(one.argval), one.offset, lines.get(int(one.argval), line)))
    around = [(start, True, of) for start, last, of in loops if start <= at <= last]
    for start, end, of in fors:
        if start < at < end and not any(start - _PREFIX <= first <= start for first, _, _ in loops):
            around.append((start, False, of))
    if not around:
        return None
    _, round_again, of = max(around)
    return round_again, of


def _is_passed(frame: FrameType) -> bool:
    """Whether a frame is one of Luff's or of torch's, which lead to the update."""
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.partition(".")[0] in ("luff", "torch")


class EarlyEnds(WaitingEvents):
    """Looks at the loops around updates, under the hook's lock and guard.

    Attributes
    ----------
    over
        Some update stands in a loop that comes round, or in none, or amid the pass of another loader.
    """

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self._told = False
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._iterators: WeakSet[Any] = WeakSet()  # of loaders: one that a loop has left is gone

    def loader_started(self, iterator: Any) -> None:
        """Called when a loader was started."""
        if not self.over:
            self._iterators.add(iterator)

    def update_begins(self, updates: int) -> None:
        """Called when an optimizer that has made `updates` is about to make another one; looks at where that stands."""
        found = self._look(sys._getframe(1)) if len(self._iterators) <= 1 else None
        self.over = found is None
        if found is not None or self._told:
            self._told = True
            function, line = found or ("", -1)
            self.waiting.append(
                {
                    "kind": "early_end",
                    "updates": updates,
                    "function": function,
                    "line": line,
                    "over": self.over,
                }
            )

    def _look(self, frame: FrameType | None) -> tuple[str, int] | None:
        """Returns the function and the line of the loop, if it never comes round."""
        for _ in range(_FRAMES):
            if frame is None:
                return None
            code = frame.f_code
            if not _is_passed(frame) and len(code.co_code) <= _MOST_CODE:
                key = id(code), frame.f_lasti
                if key not in self._known:
                    if len(self._known) >= _KNOWN:
                        return None
                    self._known[key] = code, loop_around(code, frame.f_lasti)
                loop = self._known[key][1]
                if loop is not None:
                    return None if loop[0] else (code.co_name, loop[1])
            frame = frame.f_back
        return None
