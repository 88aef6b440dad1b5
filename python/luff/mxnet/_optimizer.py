"""Reads a trainer: settings and state of its optimizer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from luff._codes import Role

if TYPE_CHECKING:
    from luff.mxnet._arrays import Reader
    from luff.mxnet._hook import Hook
    from luff.mxnet._model import Models

__all__ = ["Optimizer"]

_SETTING, _STATE = int(Role.OPTIMIZER_SETTING), int(Role.OPTIMIZER_STATE)
_SETTINGS = (
    ("momentum", "momentum"),
    ("wd", "weight_decay"),
    ("beta1", "beta1"),
    ("beta2", "beta2"),
    ("rescale_grad", "rescale_grad"),
    ("clip_gradient", "clip_gradient"),
)
_STATES = {  # names of the arrays of an optimizer's state, in order
    "SGD": ("momentum",),
    "NAG": ("momentum",),
    "Signum": ("momentum",),
    "Adam": ("mean", "var"),
    "AdamW": ("mean", "var"),
    "LAMB": ("mean", "var"),
    "Adamax": ("mean", "var"),
    "Nadam": ("mean", "var"),
    "AdaGrad": ("history",),
    "AdaDelta": ("acc_g", "acc_delta"),
    "RMSProp": ("n", "g", "delta"),
    "Ftrl": ("z", "n"),
}


class Optimizer:
    """One trainer and its optimizer.

    Attributes
    ----------
    number, name
        As in events and names of tensors.
    """

    def __init__(self, trainer: Any, number: int, taken: list[str]) -> None:
        self._trainer = weakref.ref(trainer)
        self.number = number
        base = type(trainer._optimizer).__name__
        count = sum(name == base or name.startswith(f"{base}_") for name in taken) + 1
        self.name = base if count == 1 else f"{base}_{count}"
        self._before = 0

    @property
    def trainer(self) -> Any:
        """The trainer; None once it no longer exists."""
        return self._trainer()

    def begins(self) -> None:
        """Called when an update begins."""
        self._before = self._count()

    def has_updated(self) -> bool:
        """Whether the update has happened: a loss scaler may have skipped it."""
        trainer = self.trainer
        return getattr(trainer, "_amp_loss_scaler", None) is None or self._count() != self._before

    def _count(self) -> int:
        trainer = self.trainer
        return 0 if trainer is None else int(trainer._optimizer.num_update)

    def settings(self, hook: Hook) -> None:
        """Records learning rate, momentum, weight decay, ... of the update that has just happened."""
        trainer = self.trainer
        if trainer is None:
            return
        optimizer = trainer._optimizer
        prefix = f"optimizer/{self.name}.group0."
        rate = self._rate(optimizer)
        if rate is not None:
            hook.steps.scalar(f"{prefix}lr", rate, _SETTING)
        for key, name in _SETTINGS:
            value = getattr(optimizer, key, None)
            if isinstance(value, int | float):
                hook.steps.scalar(prefix + name, value, _SETTING)

    @staticmethod
    def _rate(optimizer: Any) -> float | None:
        """Returns the learning rate. The user's own scheduler is never called, since the
        call may change its state.
        """
        scheduler = optimizer.lr_scheduler
        if scheduler is None:
            return float(optimizer.lr)
        if type(scheduler).__module__ != "mxnet.lr_scheduler":
            return None
        return float(scheduler(optimizer.num_update))

    def states(self, hook: Hook, reader: Reader, models: Models) -> None:
        """Records what is due of the optimizer's state, after the update."""
        trainer, session = self.trainer, hook.session
        if trainer is None or session is None or not session.due_role(_STATE):
            return
        if trainer._kvstore and trainer._update_on_kvstore:
            updater = getattr(trainer._kvstore, "_updater", None)
        else:
            updater = trainer._updaters[0]
        held = getattr(updater, "states", {})
        for index, parameter in enumerate(trainer._params):
            known = models.parameters.get(id(parameter))
            name = parameter.name if known is None else known.name
            names = _STATES.get(type(trainer._optimizer).__name__, ())
            for place, value in enumerate(_flat(held.get(index))):
                key = names[place] if place < len(names) else f"state{place}"
                number = hook.steps.number(f"optimizer/{self.name}.{key}/{name}", _STATE)
                reader.capture(number, value)


def _flat(state: Any) -> list[Any]:
    if state is None:
        return []
    if isinstance(state, tuple | list):
        return [value for item in state for value in _flat(item)]
    return [state] if hasattr(state, "handle") else []
