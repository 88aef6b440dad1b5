"""A variable of Luff's own in which a graph notes each update: its number, its time, and numbers such as the loss.

Reading a variable after every step costs more than all else that Luff does in a step, because whatever runs after the
training's own work finds cold caches. The variable keeps the last `ROWS` updates, so that many can be read at once;
the time of each shows which step it belongs to.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from luff.keras._table import Spec
from luff.keras._tensorflow_graphs import aside

__all__ = ["ROWS", "Ring", "Row"]

ROWS = 128
_NUMBER, _TIME, _WAITED, _VALUES = 0, 1, 2, 3  # columns; times are in seconds since 1970


class Row(NamedTuple):
    """What was noted of one update."""

    time_ns: float  # since 1970, precise to the microsecond
    waited_s: float  # what the `WaitClock` held then
    values: list[float]


class Ring:
    """The last updates of an optimizer in one graph.

    Parameters
    ----------
    optimizer
        The optimizer that updates.
    specs
        Specs of the numbers that are noted in addition to number and time.
    """

    def __init__(self, optimizer: Any, specs: tuple[Spec, ...]) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.specs = specs
        with tf.init_scope(), aside():
            self._count = ResourceVariable(0, trainable=False, dtype=tf.int64, name="luff_count")
            empty = tf.zeros([ROWS, _VALUES + len(specs)], tf.float64)
            self.variable = ResourceVariable(empty, trainable=False, name="luff_rows")
        self._seen = 0

    def write(self, values: list[Any], waited: Any) -> None:
        """Makes the graph being traced write a row, with the time it has waited and one value for each spec."""
        with aside():
            number = self._count.assign_add(1, read_value=True)
            row = [tf.cast(number, tf.float64), tf.timestamp(), waited, *map(_one_number, values)]
            tf.raw_ops.ResourceScatterUpdate(
                resource=self.variable.handle, indices=(number - 1) % ROWS, updates=tf.stack(row)
            )

    def news(self, held: NDArray[np.float64], until_ns: int | None = None) -> tuple[int, list[Row]]:
        """Returns the updates since the last call.

        Parameters
        ----------
        held
            The content of the variable.
        until_ns
            Later updates are left for the next call.

        Returns
        -------
        tuple
            Their count, and a row for each that is still in the ring, oldest first.
        """
        rows = held[held[:, _NUMBER] > self._seen]
        if until_ns is not None:
            rows = rows[rows[:, _TIME] * 1e9 <= until_ns]
        if not len(rows):
            return 0, []
        rows = rows[rows[:, _NUMBER].argsort()]
        newest = int(rows[-1, _NUMBER])
        count, self._seen = newest - self._seen, newest
        return count, [
            Row(float(row[_TIME]) * 1e9, float(row[_WAITED]), row[_VALUES:].tolist()) for row in rows
        ]


def _one_number(value: Any) -> Any:
    """Returns a scalar, whatever shape the value turns out to have: a graph's static shape may be wrong."""
    value = tf.cast(value, tf.float64)
    value = tf.raw_ops.PlaceholderWithDefault(input=value, shape=tf.TensorShape(None))
    return tf.reduce_sum(tf.reshape(value, [-1]))
