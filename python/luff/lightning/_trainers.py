"""Wraps functions of Lightning, once: those that users call, and the redirection through a model's wrapper."""

from __future__ import annotations

import sys
from typing import Any

from luff._patch import Method, once, wrap
from luff.torch._frameworks import callbacks_in, running
from luff.torch.patches._wraps import local

__all__ = ["install", "watch_all"]

#: Packages, with the modules of their trainer and of their redirection.
_PACKAGES = {
    "lightning": ("lightning.pytorch", "lightning.pytorch.strategies.strategy"),
    "pytorch_lightning": ("pytorch_lightning", "pytorch_lightning.strategies.strategy"),
}
_watching_all = False
_replace = once(wrap)


def install() -> None:
    """Installs the wrappers in the packages that are imported already; once each."""
    for trainers, strategies in _PACKAGES.values():
        trainer = getattr(sys.modules.get(trainers), "Trainer", None)
        detour = getattr(sys.modules.get(strategies), "_ForwardRedirection", None)
        if trainer is not None:
            for name in ("fit", "validate", "test", "predict"):
                _replace(trainer, name, _running)
        if detour is not None:
            _replace(detour, "__call__", _detouring)


def watch_all() -> None:
    """Gives every trainer without a `Callback` one from now on."""
    global _watching_all
    _watching_all = True


def _callbacks(trainer: Any) -> list[Any]:
    """Returns Luff's call-backs of a trainer; under ``luff run`` one is added if there is none."""
    from luff.lightning._callback import Callback

    callbacks: Any = getattr(trainer, "callbacks", None)

    def add(ours: Any) -> None:  # before the call-backs that write checkpoints
        writers = [n for n, callback in enumerate(callbacks) if callback in trainer.checkpoint_callbacks]
        callbacks.insert(writers[0] if writers else len(callbacks), ours)

    return callbacks_in(callbacks, Callback, add if _watching_all else None)


def _running(original: Method) -> Method:
    return running(original, _callbacks)


def _detouring(original: Method) -> Method:
    """Hides two calls that are not calls of the model: Lightning calls its wrapper (DDP) to call `training_step`."""

    def __call__(self: Any, wrapper_module: Any, original_module: Any, *args: Any, **kwargs: Any) -> Any:
        now = local.now
        if now.inside:
            return original(self, wrapper_module, original_module, *args, **kwargs)
        now.through = (wrapper_module, original_module)
        try:
            return original(self, wrapper_module, original_module, *args, **kwargs)
        finally:
            now.through = ()

    return __call__
