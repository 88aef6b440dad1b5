"""Detects optimizers that hold nothing of a model that is called, and get gradients all the same: what others have
computed is handed to them, as by copies of their model (meta-learning, workers), or a pass reaches them without a call.

An optimizer of a model that was copied later has no gradients, or those of its last training. Two updates in a row
with others than before are no such case. Looked at in the first updates, until two of them were seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import Any

from luff.torch.capture._recorder import OptimizerRecord, parameters_of
from luff.torch.evidence._accumulated import first_bytes, is_multiple
from luff.torch.evidence._events import WaitingEvents

__all__ = ["HandedGradients"]

_PARAMETERS = 8  # of an optimizer that are looked at
_LOOKS = 64  # updates of an optimizer
_OPTIMIZERS = 64


class _Look:
    """The gradients of an optimizer's last update."""

    __slots__ = ("gradients", "looks", "parameters")

    def __init__(self, parameters: list[Any]) -> None:
        self.looks = 0
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        #: Of each parameter a weak reference to its gradient, and the first bytes of that one.
        self.gradients: list[tuple[Any, bytes] | None] = [None] * len(parameters)

    def are_new(self) -> bool:
        """Looks at the gradients; whether most of them are there and others than at the last look.

        Those that were only scaled, as by clipping, or cleared are not.
        """
        self.looks += 1
        new = 0
        for at, (reference, last) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                self.gradients[at] = None
                continue
            now = first_bytes(gradient)
            self.gradients[at] = (weakref.ref(gradient), now)
            if last is None:
                new += self.looks > 1 and (not now or any(now))  # it was cleared before
            elif now and last[1]:
                new += any(now) and now != last[1] and not is_multiple(last[1], now, gradient.dtype)
            else:
                new += last[0]() is not gradient
        return 2 * new > len(self.parameters)


class HandedGradients(WaitingEvents):
    """Looks at the gradients of optimizers, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        self._looks: dict[int, _Look] = {}  # by number of the optimizer
        self.over: set[int] = set()  # numbers of optimizers that need not be looked at

    def update_begins(self, record: OptimizerRecord, optimizer: Any, called: Container[int]) -> None:
        """Called when an optimizer that is not `over` is about to use its gradients.

        Parameters
        ----------
        record, optimizer
            The optimizer.
        called
            Ids of the parameters of models that were called.
        """
        number = record.number
        look = self._looks.get(number)
        if look is None:
            if len(self._looks) + len(self.over) >= _OPTIMIZERS:
                return
            held = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
            if any(id(parameter) in called for parameter in held):
                self.over.add(number)
                return
            count = min(len(held), _PARAMETERS)
            look = _Look([held[at * len(held) // count] for at in range(count)])
            self._looks[number] = look
        told = look.are_new()
        if told:
            self.waiting.append({"kind": "gradients_handed", "optimizer": number})
        if told or look.looks >= _LOOKS:
            del self._looks[number]
            self.over.add(number)
