"""Which modules are models, and which model a called module belongs to."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from luff._weak import Identities
from luff.torch.capture._names import topmost

__all__ = ["CalledModels", "is_loss"]


def is_loss(module: Any) -> bool:
    """True for torch's losses, and for what is called one."""
    return isinstance(module, torch.nn.modules.loss._Loss) or type(module).__name__.endswith(
        ("Loss", "loss", "Criterion")
    )


class CalledModels:
    """The models that a training calls. Holds weak references only."""

    def __init__(self) -> None:
        # Of each called module: its model (weakly), and whether it is a loss.
        self._called: Identities[tuple[Any, bool]] = Identities()
        self._parameters: Identities[bool] = Identities()
        self._roots: Identities[bool] = Identities()
        self.fresh = False  # a model was called for the first time: names and tables have to be made again

    def has_parameters(self, module: Any) -> bool:
        """False for losses, metrics, activations: modules that are no models."""
        answer = self._parameters.get(module)
        if answer is None:
            answer = self._parameters[module] = next(module.parameters(), None) is not None
        return answer

    def knows(self, module: Any) -> bool:
        """The module was called before."""
        return module in self._called

    def root(self, module: Any) -> Any:
        """The model that a module belongs to; None for one without parameters, and for a loss that has some."""
        known = self._called.get(module)
        if known is not None:
            if known[1]:
                return None
            root = known[0]()
            return module if root is None else root
        if not self.has_parameters(module):
            return None
        root = topmost(module)
        # A model that returns its own loss may be called so too: a loss comes after another model.
        loss = root is module and is_loss(module) and bool(len(self._roots))
        self._called[module] = (weakref.ref(root), loss)
        if root not in self._roots:
            self._roots[root] = self.fresh = True
        return None if loss else root

    def models(self) -> list[Any]:
        """The models called so far that still exist, in the order of their first calls."""
        models = [reference() for reference, _ in self._called.values()]
        found = {id(model): model for model in models if model is not None and self.has_parameters(model)}
        return list(found.values())
