"""Wrappers on JAX: around the step functions that Keras compiles, and around what is traced in them."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer

from luff import _jax_compiles
from luff._patch import once, wrap
from luff._phases import waiting
from luff.keras._hook import Callback, hooks
from luff.keras._jax_values import KEY, JaxValues, Step

__all__ = ["install"]


@once
def install() -> None:
    """Installs the wrappers, once."""
    _jax_compiles.listen(hooks)
    wrap(JAXEpochIterator, "_get_iterator", _batches)
    wrap(JAXTrainer, "make_train_function", functools.partial(_make, "train"))
    wrap(JAXTrainer, "make_test_function", functools.partial(_make, "test"))
    wrap(keras.optimizers.Optimizer, "_backend_update_step", _update)
    wrap(keras.optimizers.LossScaleOptimizer, "stateless_apply", _scaled)


def _values(hook: Callback | None) -> JaxValues | None:
    values = hook.values if hook is not None and hook.steps.mode and hook.here() else None
    return values if isinstance(values, JaxValues) else None


def _batches(original: Any) -> Any:
    def get_iterator(self: Any) -> Any:
        batches = original(self)
        return waiting(batches) if hooks else batches

    return get_iterator


def _make(kind: str, original: Any) -> Any:
    def make(self: Any, force: bool = False) -> Any:
        if not hooks or hooks.of_model(self) is None:
            return original(self, force)
        before = getattr(self, f"{kind}_function")
        step = Step()
        object.__setattr__(self, f"{kind}_step", _traced(step, getattr(self, f"{kind}_step")))
        try:
            result = original(self, force)
        finally:
            object.__delattr__(self, f"{kind}_step")
        function = getattr(self, f"{kind}_function")
        if function is not before and function is not None:
            setattr(self, f"{kind}_function", _called(self, step, function))
        return result

    return make


def _traced(step: Step, original: Any) -> Any:
    """Returns the step as it is compiled: with the values for Luff among its logs."""

    @functools.wraps(original)
    def traced(state: Any, data: Any) -> Any:
        values = _values(hooks.training()) if hooks else None
        if values is None:
            return original(state, data)
        values.traced()
        try:
            logs, after = original(state, data)
            collected = values.collected
        finally:
            values.collected = None
        found = values.hook.while_live("trace", step.results, collected, after)
        if found and isinstance(logs, dict):
            logs = {**logs, KEY: found}
        return logs, after

    return traced


def _called(model: Any, step: Step, function: Any) -> Any:
    """Returns the function that Keras calls for a step."""

    @functools.wraps(function)
    def called(state: Any, iterator: Any) -> Any:
        hook = hooks.of_model(model) if hooks else None
        values = _values(hook)
        if hook is not None and values is not None:
            hook.while_live("weights", values.state_before, model, state)
        logs, after = function(state, iterator)
        given = logs.pop(KEY, {}) if isinstance(logs, dict) else {}
        if hook is not None and values is not None:
            hook.while_live("step", values.state_after, step, given, model, after)
        return logs, after

    return called


def _update(original: Any) -> Any:
    def update(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        if hooks:
            hook = hooks.training()
            values = _values(hook)
            if hook is not None and values is not None:
                pairs = list(zip(grads, trainable_variables, strict=True))
                hook.while_live("gradients", values.gradients, self, pairs, learning_rate)
        return original(self, grads, trainable_variables, learning_rate)

    return update


def _scaled(original: Any) -> Any:
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        result = original(self, optimizer_variables, grads, trainable_variables)
        hook = hooks.training() if hooks else None
        values = _values(hook)
        if hook is not None and values is not None:
            hook.while_live("gradients", _unscaled, values, self, optimizer_variables, grads)
        return result

    return stateless_apply


def _unscaled(values: JaxValues, optimizer: Any, variables: Any, gradients: Any) -> None:
    where = [variable is optimizer.dynamic_scale for variable in optimizer.variables].index(True)
    values.scaled_gradients(optimizer, gradients, variables[where])
