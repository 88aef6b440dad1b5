"""Decides what may be added to a TensorFlow graph that is being traced.

A value is kept only in graphs that run as part of a step, as they were written. Graphs that are exported, vectorized,
compiled by XLA or part of a data pipeline are not changed: see the table in docs/keras.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from luff._arrays import dtype_code

__all__ = [
    "aside",
    "calls",
    "can_be_kept",
    "graph_key",
    "in_graph",
    "in_xla",
    "local",
    "may_keep",
    "may_tell_time",
    "pristine",
]

_DATA = os.path.join("python", "data", "ops", "structured_function.py")
_PFOR = os.path.join("ops", "parallel_for", "control_flow_ops.py")
_ELSEWHERE = ("ParameterServer", "TPU", "CentralStorage")  # strategies that run graphs where Luff cannot read
_AS_WRITTEN = "luff: as written"


class _Calls(threading.local):
    """Compiled functions that this thread is calling, the outermost one first."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.pristine = 0


calls = _Calls()
_touched: weakref.WeakSet[Any] = weakref.WeakSet()  # functions whose graphs keep something


def in_graph() -> bool:
    """Whether a graph is being traced."""
    return not tf.executing_eagerly()


def in_xla() -> bool:
    """Whether a graph is being traced that XLA will compile, or may form clusters from."""
    if not in_graph():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph)) or _clusters()


def _clusters() -> bool:
    if tf.config.optimizer.get_jit():
        return True
    flags = os.environ.get("TF_XLA_FLAGS", "")
    return (
        "tf_xla_auto_jit" in flags and "tf_xla_auto_jit=0" not in flags and "tf_xla_auto_jit=-1" not in flags
    )


def graph_key() -> int:
    """Identifies the graph being traced; 0 if there is none."""
    return id(tf.compat.v1.get_default_graph()) if in_graph() else 0


def local(value: Any) -> Any:
    """Returns the first replica's part of a distributed value; any other value unchanged."""
    if isinstance(value, tf.distribute.DistributedValues):
        return value.values[0]
    return value


def may_keep() -> bool:
    """Whether the graph being traced runs as part of a step, on this machine, as it was written."""
    if calls.pristine or _is_saving():
        return False
    if any(word in type(tf.distribute.get_strategy()).__name__ for word in _ELSEWHERE):
        return False
    with tf.init_scope():
        # inside a session of TensorFlow 1, which would have to initialize our variables
        if not tf.executing_eagerly():
            return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_DATA) or (
            code.co_name == "_pfor_impl" and code.co_filename.endswith(_PFOR)
        ):
            return False
        frame = frame.f_back
    _touched.update(calls.stack)
    return True


def may_tell_time() -> bool:
    """Whether operations may read the clock: with deterministic results required,
    TensorFlow fails a step that does.
    """
    try:
        from tensorflow.python.framework.config import is_op_determinism_enabled
    except ImportError:
        return False
    return not is_op_determinism_enabled()


def _is_saving() -> bool:
    try:
        from tensorflow.python.saved_model import save_context
    except ImportError:
        return False
    return bool(save_context.in_save_context())


def can_be_kept(value: Any) -> Any:
    """Returns the dense tensor whose memory Luff can read; None for ragged and sparse tensors, strings, and so on."""
    value = local(value)
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    if hasattr(value, "_value") or isinstance(value, tf.Variable | np.ndarray):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor):
        return None
    try:
        code = dtype_code(np.dtype(value.dtype.as_numpy_dtype))
    except (TypeError, KeyError):
        return None
    return None if code is None else value


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Puts operations added in a block into a name scope of their own and on the CPU, and hides them from tapes."""
    with tf.name_scope("luff/"), tf.device("CPU:0"), _not_recorded():
        yield


def _not_recorded() -> Any:
    try:
        from tensorflow.python.eager import record
    except ImportError:
        return contextlib.nullcontext()
    return record.stop_recording()


# Functions as they were written ------------------------------------------------------------------------------------


@contextlib.contextmanager
def pristine(function: Any) -> Iterator[None]:
    """Traces a function whose graph keeps something again for a block, with nothing kept in it.

    This graph goes where a variable of Luff's own cannot: into an exported model, or one that XLA compiles.

    Its graph goes where a variable of Luff's own cannot: into an exported model, or one that XLA compiles.
    """
    if function not in _touched:
        yield
        return
    _separate()
    calls.pristine += 1
    try:
        yield
    finally:
        calls.pristine -= 1


_separated = False


def _separate() -> None:
    """Gives graphs that are traced as they were written a cache key of their own; once."""
    global _separated
    if _separated:
        return
    _separated = True
    try:
        from tensorflow.python.eager.polymorphic_function import function_context

        make = function_context.make_function_context

        def made(*arguments: Any, **named: Any) -> Any:
            found = make(*arguments, **named)
            try:
                own = found.context._replace(xla_context_id=_AS_WRITTEN)
                return found._replace(context=own) if calls.pristine else found
            except (AttributeError, ValueError):
                return found

        function_context.make_function_context = made
    except (ImportError, AttributeError):  # another version of TensorFlow: graphs traced earlier are reused
        return
