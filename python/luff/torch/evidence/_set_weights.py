"""Detects weights that something else than their optimizer sets between its updates, as averages of neighbours do.

Looked at in the first updates of each optimizer, until two were seen; told where there are several optimizers. What the
optimizer left is compared with what it finds, since writes by way of `.data` are not counted, and vectors count too.
`_set_back` asks something else of matrices in all of a training, where a counter or a loader gives cause: the two share
no reading.
"""

from __future__ import annotations

import weakref
from typing import Any

from luff.torch.capture._recorder import OptimizerRecord, parameters_of
from luff.torch.evidence._accumulated import first_bytes
from luff.torch.evidence._events import WaitingEvents

__all__ = ["SetWeights"]

_PARAMETERS = 4  # of an optimizer that are looked at
_LOOKS = 24  # updates of an optimizer
_TOLD = 2  # updates before which weights were set
_OPTIMIZERS = 64


class _Look:
    """The weights of an optimizer after its last update."""

    __slots__ = ("after", "looks", "parameters", "set")

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        self.after: list[bytes] = []
        self.looks = self.set = 0

    def read(self) -> list[bytes]:
        return [first_bytes(reference()) for reference in self.parameters]


class SetWeights(WaitingEvents):
    """Looks at the weights of optimizers, under the hook's lock and guard.

    Attributes
    ----------
    on
        Whether some optimizer may be looked at. Set when one is about to make its first update.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self._looks: dict[int, _Look] = {}  # by number of the optimizer
        self._over: set[int] = set()  # numbers of optimizers that need not be looked at

    def update_begins(self, record: OptimizerRecord, several: bool) -> None:
        """Called when an optimizer is about to change its weights, while `on`. `several`: there are others."""
        number = record.number
        look = self._looks.get(number)
        if look is None:
            return
        look.looks += 1
        look.set += look.read() != look.after
        if look.set < _TOLD and look.looks < _LOOKS:
            return
        if several and look.set >= _TOLD:
            self.waiting.append({"kind": "weights_set", "optimizer": number})
        del self._looks[number]
        self._over.add(number)
        self.on = bool(self._looks)

    def update_ended(self, record: OptimizerRecord, optimizer: Any) -> None:
        """Called when an optimizer has changed its weights, while `on`."""
        number = record.number
        look = self._looks.get(number)
        if look is None:
            if number in self._over or len(self._looks) + len(self._over) >= _OPTIMIZERS:
                self.on = bool(self._looks)
                return
            held = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
            count = min(len(held), _PARAMETERS)
            look = self._looks[number] = _Look([held[at * len(held) // count] for at in range(count)])
        look.after = look.read()
