"""Whether a script counts all results of a comparison: takes their sum or mean as they are, without a mask between.

Read from the code of the frame that compares, right behind the comparison: ``(answers == labels).float().mean()``. What
is stored, indexed, or joined with something else before it is counted is not known.
"""

from __future__ import annotations

import dis
from types import FrameType

__all__ = ["counts_all"]

_KEEP = frozenset(("float", "double", "half", "int", "long", "cpu", "detach", "clone", "numpy"))
_COUNT = frozenset(("sum", "mean"))
_NAMES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_CALLS = frozenset(("CALL", "CALL_METHOD", "CALL_FUNCTION", "PRECALL"))
_NOTHING = frozenset(("CACHE", "NOP", "PUSH_NULL", "EXTENDED_ARG"))
_MOST = 32  # instructions


def counts_all(frame: FrameType | None) -> bool:
    """Returns whether the frame's next calls take the sum or mean of what its current instruction gives."""
    if frame is None:
        return False
    named = False  # a method's name was loaded that is not called yet
    left = _MOST
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti or (name := instruction.opname) in _NOTHING:
            continue
        left -= 1
        if not left:
            return False
        if name in _NAMES and not named and instruction.argval in _COUNT:
            return True
        if name in _NAMES and not named and instruction.argval in _KEEP:
            named = True
        elif name in _CALLS and named and instruction.arg in (0, None):
            named = name == "PRECALL"  # of Python 3.11, in front of CALL
        else:
            return False
    return False
