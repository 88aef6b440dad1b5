"""Numbers and names the optimizers that a run has seen."""

from __future__ import annotations

import weakref
from typing import Any

from luff._codes import Role
from luff._weak import Identities
from luff.keras._table import Spec

__all__ = ["Known", "Optimizers", "state_of"]

_SETTING, _STATE = int(Role.OPTIMIZER_SETTING), int(Role.OPTIMIZER_STATE)


class Known:
    """One optimizer."""

    def __init__(self, optimizer: Any, number: int, name: str) -> None:
        self.reference = weakref.ref(optimizer)
        self.number = number
        self.name = name
        self.updates = 0  # in the open step
        self.rate = Spec(f"optimizer/{name}.group0.lr", _SETTING)


class Optimizers:
    """The optimizers of one run, in the order in which they were seen."""

    def __init__(self) -> None:
        self._of: Identities[Known] = Identities()
        self._taken: set[str] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def of(self, optimizer: Any) -> Known:
        """Returns what is known of an optimizer; for one that scales losses, of the inner one that updates."""
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        found = self._of.get(optimizer)
        if found is None:
            stem = str(getattr(optimizer, "name", type(optimizer).__name__))
            name = stem if stem not in self._taken else f"{stem}_{len(self)}"
            self._taken.add(name)
            found = self._of[optimizer] = Known(optimizer, len(self) - 1, name)
        return found

    def living(self) -> list[tuple[Known, Any]]:
        """Returns the optimizers that are alive."""
        pairs = [(known, known.reference()) for known in self._of.values()]
        return [(known, optimizer) for known, optimizer in pairs if optimizer is not None]


def state_of(known: Known, optimizer: Any) -> list[tuple[Any, Spec]]:
    """Returns the variables that an optimizer keeps for those it updates, such as momenta."""
    rate = getattr(optimizer, "_learning_rate", None)
    return [
        (variable, Spec(f"{known.name}/{variable.name}", _STATE))
        for variable in optimizer.variables
        if variable is not rate and variable is not optimizer._iterations
    ]
