"""Wraps the Trainer's functions that users call, once."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers.trainer import Trainer

from luff._patch import once, wrap
from luff.torch._frameworks import callbacks_in, running

__all__ = ["install", "watch_all"]

_MODES = {"train": None, "evaluate": "EVAL", "predict": "PREDICT"}
_watching_all = False


@once
def install() -> None:
    """Installs the wrappers; once per process."""
    for name, mode in _MODES.items():
        wrap(Trainer, name, partial(running, callbacks_of=_callbacks, begins=partial(_begins, mode)))


def watch_all() -> None:
    """Gives every Trainer without a `Callback` one from now on."""
    global _watching_all
    _watching_all = True


def _begins(mode: str | None, callback: Any, trainer: Any) -> None:
    callback.begins(trainer, mode)


def _callbacks(trainer: Any) -> list[Any]:
    """Returns Luff's call-backs of a Trainer; under ``luff run`` one is added if there is none."""
    from luff.transformers._callback import Callback

    callbacks: Any = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)

    def add(ours: Any) -> None:
        callbacks.append(ours)

    return callbacks_in(callbacks, Callback, add if _watching_all else None)
