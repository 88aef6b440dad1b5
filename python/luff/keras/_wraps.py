"""Wrappers around methods of Keras' own classes, installed once. They do nothing while no hook is alive."""

from __future__ import annotations

import functools
import threading
from typing import Any

import keras

from luff._codes import Mode, Phase
from luff._core import enter_phase, leave_phase
from luff._patch import Method, once, wrap
from luff._phases import during
from luff.keras._hook import Callback, hooks
from luff.keras._inputs import telling_fit
from luff.keras._values import Values

__all__ = ["install"]

_TRAIN, _EVAL, _PREDICT = int(Mode.TRAIN), int(Mode.EVAL), int(Mode.PREDICT)
_COMPUTE = int(Phase.COMPUTE)


class _Local(threading.local):
    """State of each thread."""

    calls = 0  # number of layers being called
    root: Any = None  # the outermost of them
    losses = 0  # number of losses being computed


_local = _Local()


@once
def install() -> None:
    """Installs the wrappers, once."""
    kinds = (("train", _TRAIN), ("test", _EVAL), ("predict", _PREDICT))
    lists = keras.callbacks.CallbackList
    for name, mode in kinds:
        wrap(lists, f"on_{name}_batch_begin", functools.partial(_batch_begin, mode))
        wrap(lists, f"on_{name}_batch_end", functools.partial(_batch_end, mode))
        wrap(keras.Model, f"{name}_on_batch", functools.partial(_on_batch, mode))
    wrap(lists, "on_epoch_end", _epoch_end)
    if keras.backend.backend() != "torch":
        wrap(keras.Model, "fit", telling_fit(hooks))
    for name in ("save", "save_weights"):
        wrap(keras.Model, name, during(Phase.CHECKPOINT, hooks))
    wrap(keras.metrics.Mean, "update_state", _mean, inner=True)
    wrap(keras.losses.Loss, "__call__", _loss, inner=True)
    wrap(keras.layers.Layer, "__call__", _layer, inner=True)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from luff.keras import _tensorflow_wraps

        _tensorflow_wraps.install()
    elif backend == "jax":
        from luff.keras import _jax_wraps

        _jax_wraps.install()
    elif backend == "torch":
        from luff.keras import _torch_wraps

        _torch_wraps.install()


def _in_step() -> tuple[Callback, Values] | None:
    """Returns the hook whose step this is, and its values. Reads them once: another thread may close the hook
    meanwhile.
    """
    hook = hooks.training()
    values = hook.values if hook is not None and hook.steps.mode and hook.here() else None
    return None if hook is None or values is None else (hook, values)


def _batch_begin(mode: int, original: Method) -> Method:
    def begin(self: Any, batch: Any, logs: Any = None) -> Any:
        result = original(self, batch, logs)
        hook = hooks.of_model(self._model) if hooks else None
        if hook is not None:
            self._luff_batch = batch
            hook.begin_batch(self._model, mode)
            leave_phase(_COMPUTE)  # of a batch that raised
            enter_phase(_COMPUTE)  # left by `_batch_end`
        return result

    return begin


def _batch_end(mode: int, original: Method) -> Method:
    def end(self: Any, batch: Any, logs: Any = None) -> Any:
        hook = hooks.of_model(self._model) if hooks else None
        if hook is None:
            return original(self, batch, logs)
        leave_phase(_COMPUTE)
        if mode == _PREDICT:
            hook.end_batch(self._model, None)
        else:
            hook.end_batch(self._model, logs, batch - getattr(self, "_luff_batch", batch) + 1)
        result = original(self, batch, logs)
        if mode == _TRAIN:
            hook.boundary()
        return result

    return end


def _epoch_end(original: Method) -> Method:
    def end(self: Any, epoch: Any, logs: Any = None) -> Any:
        result = original(self, epoch, logs)
        hook = hooks.of_model(self._model) if hooks else None
        if hook is not None:
            hook.while_live("epoch", hook.end_epoch, logs)
        return result

    return end


def _on_batch(mode: int, original: Method) -> Method:
    def on_batch(self: Any, *arguments: Any, **named: Any) -> Any:
        hook = hooks.of_model(self) if hooks else None
        if hook is None or (hook.steps.mode and hook.here()):
            return original(self, *arguments, **named)
        hook.begin_batch(self, mode)
        enter_phase(_COMPUTE)
        try:
            result = original(self, *arguments, **named)
        except BaseException:
            hook.drop_batch()
            raise
        finally:
            leave_phase(_COMPUTE)
        hook.end_batch(self, None if mode == _PREDICT else result)
        if mode == _TRAIN:
            hook.boundary()
        return result

    return on_batch


def _mean(original: Method) -> Method:
    def update_state(self: Any, values: Any, *arguments: Any, **named: Any) -> Any:
        if hooks and self.name == "loss":
            found = _in_step()
            if found is not None:
                hook, ours = found
                hook.while_live("loss", ours.total, values)
        return original(self, values, *arguments, **named)

    return update_state


def _loss(original: Method) -> Method:
    def call(self: Any, y_true: Any, y_pred: Any, *arguments: Any, **named: Any) -> Any:
        if not hooks or _local.losses:
            return original(self, y_true, y_pred, *arguments, **named)
        _local.losses += 1
        try:
            result = original(self, y_true, y_pred, *arguments, **named)
        finally:
            _local.losses -= 1
        found = _in_step()
        if found is not None:
            hook, values = found
            hook.while_live("loss", values.loss_called, self, y_true, y_pred, result)
        return result

    return call


def _layer(original: Method) -> Method:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not hooks:
            return original(self, *arguments, **named)
        outer = not _local.calls
        if outer:
            _local.root = self
        _local.calls += 1
        try:
            result = original(self, *arguments, **named)
        finally:
            _local.calls -= 1
        if outer:
            _local.root = None
        found = _in_step()
        if found is not None:
            found[0].while_live("layer", _called, *found, self, arguments, named, result, outer)
        return result

    return call


def _called(
    hook: Callback,
    values: Values,
    layer: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    result: Any,
    outer: bool,
) -> None:
    if not outer and not values.layers:
        return
    if outer and isinstance(layer, keras.Model):
        if layer.built:
            hook.learn(layer)
        values.model_called(layer, _arrays(arguments))
        if hook.loops is not None and hook.loops.open:
            hook.loops.called(layer, arguments, named)
    elif values.layers:
        path = hook.names.path_of(layer, _local.root)
        if path:
            values.layer_called(layer, path, _arrays(arguments), _arrays(result))


def _arrays(values: Any) -> list[Any]:
    found = [value for value in keras.tree.flatten(values) if hasattr(value, "shape")]
    return [value for value in found if not isinstance(value, keras.KerasTensor)]
