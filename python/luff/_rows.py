"""How much of a value a sample keeps (docs/spec/evidence.md, "Samples")."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MAX_CALLS", "MAX_TENSORS", "WHOLE_BYTES", "rows_that_fit"]

WHOLE_BYTES = 64 << 10  # a value up to this size is kept whole
_ROW_BYTES = 1 << 20  # of a larger value at least one row is kept, unless a row is larger than this
MAX_TENSORS = 8  # of one model in one step
MAX_CALLS = 8  # of one kind of loss in one step


def rows_that_fit(shape: Sequence[int], nbytes: int) -> int:
    """Returns how many rows (axis 0) of a value fit: all of a small one, 1 for a number, 0 if not even one does."""
    if not shape or not nbytes:
        return 1
    if nbytes <= WHOLE_BYTES:
        return int(shape[0])
    row = nbytes // shape[0]
    return 0 if row > _ROW_BYTES else max(WHOLE_BYTES // row, 1)
