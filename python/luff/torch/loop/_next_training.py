"""Recognises that a process begins another training: the next fold, the next point of a sweep in a loop.

It does where a new optimizer holds only parameters that were never seen, and the next model that is trained has some of
them and was never called. Programs that make optimizers as they go are left alone: meta-learning makes one for each
task. So are those that train an earlier model again after another training has begun, from then on.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from luff._next_training import SHORT
from luff._weak import Identities
from luff.torch.capture._names import Names
from luff.torch.capture._recorder import parameters_of

__all__ = ["NextTraining"]

_MADE = 64  # optimizers that may belong to the next training


class NextTraining:
    """Follows the optimizers that are made, under the hook's lock and guard.

    Attributes
    ----------
    made
        Weak references to those that may be of the next one.
    """

    def __init__(self, former: Iterable[Any] = ()) -> None:
        self.made: list[Any] = []
        self._as_it_goes = False
        self.former: Identities[None] = Identities()  # optimizers of the process's trainings before this one
        for optimizer in former:
            self.former[optimizer] = None

    def takes(self, optimizer: Any, names: Names, steps: int) -> bool:
        """Takes a new optimizer; returns whether it may belong to another training.

        Parameters
        ----------
        steps
            TRAIN steps so far.
        """
        if not steps or self._as_it_goes:
            return False
        if any(names.parameter(parameter) is not None for parameter in parameters_of(optimizer)):
            return False
        self._as_it_goes = steps < SHORT
        if self._as_it_goes:
            return False
        self.made = [*(one for one in self.made[1 - _MADE :] if one() is not None), weakref.ref(optimizer)]
        return True

    def updated(self, optimizer: Any) -> None:
        """Called when an optimizer updates: one of a training before shows that this was no other training."""
        if optimizer in self.former:
            self._as_it_goes = True
            self.former.clear()

    def take(self, model: Any) -> tuple[list[Any], bool]:
        """Called when a model is about to be trained. Returns the new optimizers, and whether they train this model.

        If they do not, they belong to the training that there is.
        """
        made, self.made = [optimizer for one in self.made if (optimizer := one()) is not None], []
        known = {id(parameter) for parameter in model.parameters()}
        trains = any(id(parameter) in known for optimizer in made for parameter in parameters_of(optimizer))
        return made, trains
