"""Gradient tapes that notify a hook of the begin of a step and of the gradients that they computed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from luff.compat.smdebug.exceptions import SMDebugTypeError

__all__ = ["watch"]

_kinds: dict[type, type] = {}


def watch(tape: Any, hook: Any) -> Any:
    """Makes a tape notify a hook; returns the tape."""
    if not isinstance(tape, tf.GradientTape):
        raise SMDebugTypeError(f"found {type(tape).__name__}, expected a tf.GradientTape")
    kind = type(tape)
    if kind not in _kinds.values():
        if kind not in _kinds:
            _kinds[kind] = _watched(kind)
        tape.__class__ = _kinds[kind]
    tape._smdebug_hook = hook
    return tape


def _watched(kind: Any) -> type:
    class Tape(kind):  # type: ignore[misc]
        """A tape that works as before and notifies its hook."""

        _smdebug_hook: Any = None

        def __enter__(self) -> Any:
            self._smdebug_hook.tape_begins()
            return super().__enter__()

        def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            """Like the tape's own `gradient`."""
            gradients = super().gradient(target, sources, *args, **kwargs)
            self._smdebug_hook.tape_gave(target, sources, gradients)
            return gradients

    Tape.__name__ = Tape.__qualname__ = kind.__name__
    return Tape
