"""Wrappers on TensorFlow: updates, tapes and compiled functions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from luff._codes import Phase
from luff._core import enter_phase, leave_phase
from luff._patch import once, wrap
from luff.keras._hook import Callback, hooks
from luff.keras._inputs import PIPELINE
from luff.keras._tensorflow_graphs import calls, in_xla, pristine

if TYPE_CHECKING:
    from luff.keras._loops import Loops

__all__ = ["install"]

_DATA_WAIT = int(Phase.DATA_WAIT)


class _Local(threading.local):
    """State of each thread."""

    function: Any = None  # the outermost compiled function being called
    tapes = 0


_local = _Local()
_outermost: list[Any] = []  # functions being called, for the threads of replicas


@once
def install() -> None:
    """Installs the wrappers, once."""
    wrap(TFOptimizer, "_distributed_tf_update_step", _update)
    wrap(Function, "__call__", _function)
    wrap(Function, "get_concrete_function", _concrete)
    for name in ("__next__", "get_next"):
        wrap(OwnedIterator, name, _taking)
    wrap(tf.GradientTape, "__enter__", _enter)
    wrap(tf.GradientTape, "gradient", _gradient)


def _open_loops(hook: Callback) -> Loops | None:
    """Returns the loops of a hook while one of their steps is open. Reads them once: another thread may close the
    hook.
    """
    loops = hook.loops
    return loops if loops is not None and loops.open else None


def _current() -> Any:
    """Returns the outermost compiled function being called; None if nothing is traced."""
    if tf.executing_eagerly():
        return None
    return _local.function or (_outermost[-1] if _outermost else None)


def _update(original: Any) -> Any:
    def update(self: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any) -> Any:
        if hooks:
            grads_and_vars = list(grads_and_vars)
            hook = hooks.training()
            if hook is not None:
                hook.told("gradients", _updates, hook, self, grads_and_vars, learning_rate)
        return original(self, distribution, grads_and_vars, learning_rate)

    return update


def _updates(hook: Callback, optimizer: Any, pairs: list[tuple[Any, Any]], rate: Any) -> None:
    if not hook.steps.mode or _open_loops(hook) is not None:
        if hook.ensure_session() is None or hook.loops is None:
            return
        hook.loops.worked([variable for _, variable in pairs], _current())
    if hook.values is not None and hook.steps.mode:
        hook.values.gradients(optimizer, pairs, rate)


def _function(original: Any) -> Any:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not hooks:
            return original(self, *arguments, **named)
        calls.stack.append(self)
        try:
            if tf.executing_eagerly():
                return _called(original, self, arguments, named)
            if in_xla():
                with pristine(self):
                    return original(self, *arguments, **named)
            return original(self, *arguments, **named)
        finally:
            calls.stack.pop()

    return call


def _called(original: Any, self: Any, arguments: Any, named: Any) -> Any:
    """Makes a call that is not part of a graph."""
    hook = None if _local.function is not None else hooks.training()
    if hook is None or (hook.steps.mode and _open_loops(hook) is None):
        return original(self, *arguments, **named)
    _local.function = self
    _outermost.append(self)
    try:
        loops = hook.loops
        if loops is not None and loops.trains(self):
            hook.told("begin", loops.begin, self)
        result = original(self, *arguments, **named)
    except BaseException:
        loops = hook.loops  # the first call creates them
        if loops is not None:
            hook.told("drop", loops.drop)
        raise
    finally:
        _local.function = None
        _outermost.remove(self)
    loops = _open_loops(hook)
    if loops is not None:
        hook.told("end", loops.returned, self)
        hook.boundary()
    return result


def _taking(original: Any) -> Any:
    """Times the wait for a batch: of a loop that asks for it, and of a step in whose graph `fit` takes it."""

    def take(self: Any) -> Any:
        if not hooks:
            return original(self)
        return _waited(original, self) if tf.executing_eagerly() else _noted(original, self)

    return take


def _waited(original: Any, iterator: Any) -> Any:
    hook = hooks.current()
    if hook is not None and not hook.input:
        hook.input = PIPELINE
    enter_phase(_DATA_WAIT)
    try:
        return original(iterator)
    finally:
        leave_phase(_DATA_WAIT)


def _noted(original: Any, iterator: Any) -> Any:
    hook = hooks.training()
    values = None if hook is None or not hook.steps.mode or not hook.here() else hook.values
    began = None if hook is None or values is None else hook.while_live("wait", values.wait_begins)
    if hook is None or values is None or began is None:
        return original(iterator)
    with tf.control_dependencies([began]):
        batch = original(iterator)
    hook.while_live("wait", values.wait_ends, began, batch)
    return batch


def _concrete(original: Any) -> Any:
    """Exports and inspects the function as it was written."""

    def get_concrete_function(self: Any, *arguments: Any, **named: Any) -> Any:
        if not tf.executing_eagerly():
            return original(self, *arguments, **named)
        with pristine(self):
            return original(self, *arguments, **named)

    return get_concrete_function


def _enter(original: Any) -> Any:
    def enter(self: Any) -> Any:
        if hooks:
            hook = hooks.training()
            if hook is not None and (not hook.steps.mode or _open_loops(hook) is not None):
                hook.told("tape", _tape, hook)
                if tf.executing_eagerly():
                    hook.boundary()
        return original(self)

    return enter


def _tape(hook: Callback) -> None:
    if hook.ensure_session() is None or hook.loops is None:
        return
    function = _current()
    if function is None or not hook.loops.open:
        hook.loops.begin(function)


def _gradient(original: Any) -> Any:
    def gradient(self: Any, target: Any, *arguments: Any, **named: Any) -> Any:
        if hooks:
            hook = hooks.training()
            if hook is not None and _open_loops(hook) is not None:
                hook.told("target", _target, hook, target)
        return original(self, target, *arguments, **named)

    return gradient


def _target(hook: Callback, target: Any) -> None:
    values, loops = hook.values, hook.loops
    if values is None or loops is None or not isinstance(target, tf.Tensor):
        return
    loops.worked([], _current())
    if not values.has_losses():
        values.total(target)
