"""What a graph notes of each update in a variable of Luff's own: its number, its time, and numbers such as the loss.

A variable that is read after every step costs more than all else of a step: whatever runs after the training's own
work finds cold caches. The last `ROWS` updates stay, so that they can be read many at a time; the time of each tells
which step it belongs to.
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
_NUMBER, _TIME, _VALUES = 0, 1, 2  # columns; times in seconds since 1970


class Row(NamedTuple):
    """What was noted of an update."""

    time_ns: float  # since 1970, to the microsecond
    values: list[float]


class Ring:
    """The last updates of an optimizer in one graph.

    Parameters
    ----------
    optimizer
        The one that updates.
    specs
        What the numbers are called that are noted beside number and time.
    """

    def __init__(self, optimizer: Any, specs: tuple[Spec, ...]) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.specs = specs
        with tf.init_scope(), aside():
            self._count = ResourceVariable(0, trainable=False, dtype=tf.int64, name="luff_count")
            empty = tf.zeros([ROWS, _VALUES + len(specs)], tf.float64)
            self.variable = ResourceVariable(empty, trainable=False, name="luff_rows")
        self._seen = 0

    def write(self, values: list[Any]) -> None:
        """Adds to the graph that is being traced that a row is written; a value for each spec."""
        with aside():
            number = self._count.assign_add(1, read_value=True)
            row = [tf.cast(number, tf.float64), tf.timestamp(), *map(_one_number, values)]
            tf.raw_ops.ResourceScatterUpdate(
                resource=self.variable.handle, indices=(number - 1) % ROWS, updates=tf.stack(row)
            )

    def news(self, held: NDArray[np.float64], until_ns: int | None = None) -> tuple[int, list[Row]]:
        """Updates since the last call.

        Parameters
        ----------
        held
            What the variable holds.
        until_ns
            Later ones are left for the next call.

        Returns
        -------
        tuple
            Their count, and a row for each that is still there, the oldest first.
        """
        rows = held[held[:, _NUMBER] > self._seen]
        if until_ns is not None:
            rows = rows[rows[:, _TIME] * 1e9 <= until_ns]
        if not len(rows):
            return 0, []
        rows = rows[rows[:, _NUMBER].argsort()]
        newest = int(rows[-1, _NUMBER])
        count, self._seen = newest - self._seen, newest
        return count, [Row(float(row[_TIME]) * 1e9, row[_VALUES:].tolist()) for row in rows]


def _one_number(value: Any) -> Any:
    """A number, whatever shape the value turns out to have: a graph may claim what is not so."""
    value = tf.cast(value, tf.float64)
    value = tf.raw_ops.PlaceholderWithDefault(input=value, shape=tf.TensorShape(None))
    return tf.reduce_sum(tf.reshape(value, [-1]))
