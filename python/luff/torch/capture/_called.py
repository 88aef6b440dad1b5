"""Decides which modules are models, and which model a called module belongs to."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from luff._weak import Identities
from luff.torch.capture._names import topmost

__all__ = ["CalledModels", "is_loss"]


def is_loss(module: Any) -> bool:
    """Whether this is one of torch's losses, or named like a loss."""
    return isinstance(module, torch.nn.modules.loss._Loss) or type(module).__name__.endswith(
        ("Loss", "loss", "Criterion")
    )


class CalledModels:
    """The models that a training calls. Holds only weak references."""

    def __init__(self) -> None:
        # Maps each called module to its model (weakly) and to whether it is a loss.
        self._called: Identities[tuple[Any, bool]] = Identities()
        self._parameters: Identities[bool] = Identities()
        self._roots: Identities[bool] = Identities()
        self.fresh = False  # a model was called for the first time: names and tables must be rebuilt

    def has_parameters(self, module: Any) -> bool:
        """Returns False for losses, metrics and activations, which are not models."""
        answer = self._parameters.get(module)
        if answer is None:
            answer = self._parameters[module] = next(module.parameters(), None) is not None
        return answer

    def knows(self, module: Any) -> bool:
        """Returns whether the module was called before."""
        return module in self._called

    def root(self, module: Any) -> Any:
        """Returns the model that a module belongs to; None for a module without
        parameters, and for a loss with some.
        """
        known = self._called.get(module)
        if known is not None:
            if known[1]:
                return None
            root = known[0]()
            return module if root is None else root
        if not self.has_parameters(module):
            return None
        root = topmost(module)
        # A model that returns its own loss may be named like a loss too, but a real loss is called after another
        # model.
        loss = root is module and is_loss(module) and bool(len(self._roots))
        self._called[module] = (weakref.ref(root), loss)
        if root not in self._roots:
            self._roots[root] = self.fresh = True
        return None if loss else root

    def models(self) -> list[Any]:
        """Returns the models called so far that still exist, in the order of their first calls."""
        models = [reference() for reference, _ in self._called.values()]
        found = {id(model): model for model in models if model is not None and self.has_parameters(model)}
        return list(found.values())
