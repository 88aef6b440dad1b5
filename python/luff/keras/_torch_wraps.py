"""Wrappers on PyTorch: around updates; while Keras runs a step of its own, the hooks of `luff.torch` are muted."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import keras
from keras.src.backend.torch.trainer import TorchTrainer

from luff._patch import once, unwrapped, wrap
from luff.keras._hook import hooks

__all__ = ["install"]


@once
def install() -> None:
    """Installs the wrappers, once."""
    for kind in ("train", "test", "predict"):
        wrap(TorchTrainer, f"make_{kind}_function", functools.partial(_make, kind))
    owners = {next(c for c in kind.__mro__ if "_backend_update_step" in vars(c)) for kind in _subclasses()}
    for owner in owners:
        wrap(owner, "_backend_update_step", _update, inner=True)


def _subclasses() -> list[type]:
    from keras.src.backend.torch.optimizers import torch_sgd

    return [keras.optimizers.Optimizer, torch_sgd.SGD]


def _make(kind: str, original: Any) -> Any:
    def make(self: Any, force: bool = False) -> Any:
        before = getattr(self, f"{kind}_function")
        result = original(self, force)
        function = getattr(self, f"{kind}_function")
        if hooks and function is not before and function is not None and hooks.of_model(self) is not None:
            setattr(self, f"{kind}_function", _alone(function, bool(self.jit_compile)))
        return result

    return make


def _alone(function: Any, compiled: bool) -> Any:
    """Makes sure that a step is recorded once: mutes the hook of `luff.torch`. Compiled code stays as it is."""

    @functools.wraps(function)
    def called(data: Any) -> Any:
        if not hooks:
            return function(data)
        found = sys.modules.get("luff.torch.patches._registry")
        with found.hooks.muted() if found is not None else contextlib.nullcontext():
            if not compiled:
                return function(data)
            hook = hooks.training()
            values = None if hook is None else hook.values
            if values is not None:
                values.compiled = True
            with unwrapped(), hooks.muted():
                return function(data)

    return called


def _update(original: Any) -> Any:
    def update(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        if hooks:
            hook = hooks.training()
            values = hook.values if hook is not None and hook.steps.mode and hook.here() else None
            if hook is not None and values is not None:
                pairs = list(zip(grads, trainable_variables, strict=True))
                hook.while_live("gradients", values.gradients, self, pairs, learning_rate)
        return original(self, grads, trainable_variables, learning_rate)

    return update
