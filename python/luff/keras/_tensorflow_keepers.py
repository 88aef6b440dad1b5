"""Variables of Luff's own that graphs assign values to.

They have no static shape and the assignment checks none, so it cannot fail and constrains nothing. A graph that has
captured a variable keeps it alive. A variable that was not assigned since it was last read can be recognized.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from luff.keras._table import Spec
from luff.keras._tensorflow_graphs import aside

__all__ = ["Flag", "Keeper", "WaitClock"]

_NOTHING = (0,) * 7  # shape of a variable that no graph has assigned yet
_nothing: dict[Any, Any] = {}  # by dtype
_SMALL = 1 << 16  # values up to this many bytes need not be given back


def _empty(dtype: Any) -> Any:
    found = _nothing.get(dtype)
    if found is None:
        found = _nothing[dtype] = tf.zeros(_NOTHING, dtype)
    return found


class Keeper:
    """Keeps a value of one name and dtype.

    Parameters
    ----------
    spec
        Spec of the tensor.
    dtype
        Type of the values.
    owner
        Key of the counter of the optimizer that must have updated for the value to belong to a step, or None.
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
        """Makes the graph being traced keep the value."""
        with aside():
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=tensor, validate_shape=False)

    def value(self, array: Any) -> Any:
        """Returns what was read from the variable, or None if no graph has assigned it."""
        return None if array.shape == _NOTHING else array

    def give_back(self, array: Any) -> None:
        """Releases a value that was read if it is large, or if it could not be told from the next one."""
        if self.owner is None or array.nbytes > _SMALL:
            self.clear()

    def clear(self) -> None:
        """Releases the value."""
        empty = _empty(self.variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=empty, validate_shape=False)


class Flag:
    """Whether graphs keep the values of a role in the running step."""

    def __init__(self, due: bool) -> None:
        self._due = due
        with tf.init_scope(), aside():
            self.variable = ResourceVariable(due, trainable=False, dtype=tf.bool, name="luff_due")
            self._values = (tf.constant(False), tf.constant(True))

    def set(self, due: bool) -> None:
        """Sets the flag for the step that begins."""
        if due != self._due:
            self._due = due
            # calling `assign` would take longer
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=self._values[due])


class WaitClock:
    """For how long a graph has waited for its batches, in seconds, since its first one."""

    def __init__(self) -> None:
        with tf.init_scope(), aside():
            self.variable = ResourceVariable(0.0, trainable=False, dtype=tf.float64, name="luff_waited")

    def begin(self) -> Any:
        """Makes the graph being traced read the clock. What follows must not begin before it has."""
        with aside():
            return tf.timestamp()

    def end(self, began: Any, batch: Any) -> None:
        """Makes it add the time from there until the batch is there."""
        parts = [part for part in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(part)]
        with aside(), tf.control_dependencies(parts):
            self.variable.assign_add(tf.timestamp() - began, read_value=False)
