"""Corrections that a training allows: call-backs that run at a step that all ranks have agreed on.

Luff corrects nothing without them. In a script that ``luff run`` watches unchanged::

    import luff

    luff.corrections.accept(lower_lr=True, rollback=load_checkpoint_before)

A call-back runs in the training's own thread, after an update, in every rank after the same TRAIN step. Its errors
are counted and reported, never raised. Without Luff nothing ever calls it.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luff.errors import InvalidArgumentError

__all__ = ["Corrections", "accept", "accepted"]

_listeners: list[weakref.WeakMethod[Callable[[], None]]] = []


@dataclass(frozen=True)
class Corrections:
    """The corrections that the training allows; None refuses one.

    Attributes
    ----------
    lower_lr
        Called with the factor (below 1) to multiply learning rates by; True: Luff multiplies those of every
        optimizer that it watches, and the values that their schedulers start from.
    skip_batch
        Called without arguments; the training skips its next batch.
    rollback
        Called with the TRAIN step (counted from 0) at which the trouble began; the training loads an older
        checkpoint.
    """

    lower_lr: bool | Callable[[float], object] | None = None
    skip_batch: Callable[[], object] | None = None
    rollback: Callable[[int], object] | None = None

    def __post_init__(self) -> None:
        for name in ("lower_lr", "skip_batch", "rollback"):
            value = getattr(self, name)
            if value is None or callable(value) or (name == "lower_lr" and isinstance(value, bool)):
                continue
            raise InvalidArgumentError(f"{name} is a {type(value).__name__}; expected a function or None")

    def kinds(self) -> list[str]:
        """Returns the kinds that are not refused."""
        return [name for name in ("lower_lr", "skip_batch", "rollback") if getattr(self, name)]

    def carry_out(self, kind: str, body: str, lower_lr: Callable[[float], object]) -> None:
        """Calls the call-back of one kind; the caller handles errors.

        Parameters
        ----------
        kind, body
            Kind and body of the proposal (docs/spec/control.md).
        lower_lr
            The framework's own way to do it, for ``lower_lr=True``.
        """
        settings: dict[str, Any] = json.loads(body) if body else {}
        if kind == "lower_lr" and self.lower_lr:
            factor = float(settings["factor"])
            if not 0.0 < factor < 1.0:
                raise InvalidArgumentError(f"factor is {factor}; expected a number between 0 and 1")
            (self.lower_lr if callable(self.lower_lr) else lower_lr)(factor)
        elif kind == "skip_batch" and self.skip_batch:
            self.skip_batch()
        elif kind == "rollback" and self.rollback:
            self.rollback(int(settings["step"]))
        else:
            raise InvalidArgumentError(f"the training has not opted in to {kind}")


_accepted = Corrections()


def accept(
    *,
    lower_lr: bool | Callable[[float], object] | None = None,
    skip_batch: Callable[[], object] | None = None,
    rollback: Callable[[int], object] | None = None,
) -> None:
    """Lets Luff correct this process's training; every rank must call it. A second call replaces the first.

    Parameters
    ----------
    lower_lr, skip_batch, rollback
        As in `Corrections`. If all are None, Luff corrects nothing from now on.

    Raises
    ------
    InvalidArgumentError
        If something cannot be called.
    """
    global _accepted
    _accepted = Corrections(lower_lr, skip_batch, rollback)
    for listener in [reference() for reference in tuple(_listeners)]:
        if listener is not None:
            listener()


def accepted() -> Corrections:
    """Returns the corrections last passed to `accept`."""
    return _accepted


def listen(listener: Callable[[], None]) -> None:
    """Calls `listener`, a method, on each call of `accept` while its object is alive."""
    _listeners.append(weakref.WeakMethod(listener))


def forget(listener: Callable[[], None]) -> None:
    """Undoes `listen`."""
    _listeners[:] = [one for one in _listeners if one() is not None and one() != listener]
