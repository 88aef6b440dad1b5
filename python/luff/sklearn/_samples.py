"""Samples: the first rows of the inputs of a model and its loss (docs/spec/evidence.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff._arrays import dtype_code
from luff._codes import Role
from luff._rows import rows_that_fit
from luff.sklearn._hook import Hook

__all__ = ["loss_samples", "sample"]

_SAMPLE = int(Role.SAMPLE)


def sample(hook: Hook, name: str, value: Any, kind: str) -> None:
    """Records the first rows of a dense array, if they are due."""
    if not isinstance(value, np.ndarray) or not hook.steps.due(f"sample/{name}", _SAMPLE, "", kind):
        return
    arrays, code = hook.steps.arrays, dtype_code(value.dtype)
    rows = rows_that_fit(value.shape, value.nbytes)
    if arrays is None or code is None or not rows:
        return
    number = arrays.number(f"sample/{name}")
    if value.ndim == 0 or rows >= value.shape[0]:
        arrays.array(number, value)
        return
    kept = np.ascontiguousarray(value[:rows])
    whole, begin = list(value.shape), [0] * value.ndim
    layout = arrays.session.define_shard_layout(code, list(kept.shape), None, whole, begin)
    arrays.session.capture_one(number, layout, int(kept.ctypes.data))


def loss_samples(hook: Hook, name: str, kind: str, outputs: Any, targets: Any) -> None:
    """Records the inputs of a loss, outputs of the model and targets, with equal numbers of rows."""
    rows = min(rows_that_fit(outputs.shape, outputs.nbytes), rows_that_fit(targets.shape, targets.nbytes))
    if rows < outputs.shape[0]:
        outputs, targets = outputs[:rows], targets[:rows]
    sample(hook, f"{name}_input_0", outputs, kind)
    sample(hook, f"{name}_input_1", targets, kind)
