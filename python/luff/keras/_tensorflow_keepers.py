"""Variables of Luff's own that graphs assign values to.

They have no shape of their own and the assignment checks none, so it cannot fail and fixes nothing. A graph that has
captured one keeps it alive. What a graph has not assigned since it was last read is told from what it has.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from luff.keras._table import Spec
from luff.keras._tensorflow_graphs import aside

__all__ = ["Flag", "Keeper"]

_NOTHING = (0,) * 7  # shape of what no graph has assigned yet
_nothing: dict[Any, Any] = {}  # by dtype
_SMALL = 1 << 16  # bytes that need not be given back


def _empty(dtype: Any) -> Any:
    found = _nothing.get(dtype)
    if found is None:
        found = _nothing[dtype] = tf.zeros(_NOTHING, dtype)
    return found


class Keeper:
    """What is kept under a name, of one dtype.

    Parameters
    ----------
    spec
        The tensor.
    dtype
        Of its values.
    owner
        Key of the counter of the optimizer that must have updated for the value to be of a step, or None.
    """

    def __init__(self, spec: Spec, dtype: Any, owner: int | None) -> None:
        self.spec = spec
        self.owner = owner
        with tf.init_scope(), aside():
            self.variable = ResourceVariable(
                _empty(dtype),
                trainable=False,
                shape=tf.TensorShape(None),
                dtype=dtype,
                name="luff",
            )

    def assign(self, tensor: Any) -> None:
        """Adds to the graph that is being traced that the value is kept."""
        with aside():
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=tensor, validate_shape=False)

    def value(self, array: Any) -> Any:
        """What was read of the variable, or None if no graph has assigned it."""
        return None if array.shape == _NOTHING else array

    def give_back(self, array: Any) -> None:
        """Lets go of what was read, where nothing else tells it from the next value, or it is large."""
        if self.owner is None or array.nbytes > _SMALL:
            self.clear()

    def clear(self) -> None:
        """Holds nothing."""
        empty = _empty(self.variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=empty, validate_shape=False)


class Flag:
    """Whether graphs keep the values of a role in the step that runs."""

    def __init__(self, due: bool) -> None:
        self._due = due
        with tf.init_scope(), aside():
            self.variable = ResourceVariable(due, trainable=False, dtype=tf.bool, name="luff_due")
            self._values = (tf.constant(False), tf.constant(True))

    def set(self, due: bool) -> None:
        """Of the step that begins."""
        if due != self._due:
            self._due = due
            # What `assign` does besides takes longer than this.
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=self._values[due])
