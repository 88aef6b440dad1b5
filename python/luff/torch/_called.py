"""Which modules are models, and which model a called module belongs to."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from luff.torch._names import topmost

__all__ = ["CalledModels", "is_loss"]

_LIMIT = 65536  # modules remembered


def is_loss(module: Any) -> bool:
    """True for torch's losses, and for what is called one."""
    return isinstance(module, torch.nn.modules.loss._Loss) or type(module).__name__.endswith(
        ("Loss", "loss", "Criterion")
    )


class CalledModels:
    """The models that a training calls. Holds weak references only."""

    def __init__(self) -> None:
        self._called: dict[int, Any] = {}
        self._parameterless: dict[int, tuple[Any, bool]] = {}
        self._roots: dict[int, Any] = {}
        self.fresh = False  # a model was called for the first time: names and tables have to be made again

    def has_parameters(self, module: Any) -> bool:
        """False for losses, metrics, activations: modules that are no models."""
        known = self._parameterless.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        answer = next(module.parameters(), None) is not None
        if len(self._parameterless) > _LIMIT:
            self._parameterless.clear()
        self._parameterless[id(module)] = (weakref.ref(module), answer)
        return answer

    def root(self, module: Any) -> Any:
        """The model that a module belongs to; None for one without parameters, and for a loss that has some."""
        known = self._called.get(id(module))
        if known is not None and known[0]() is module:
            if known[2]:
                return None
            root = known[1]()
            return module if root is None else root
        if not self.has_parameters(module):
            return None
        root = topmost(module)
        # A model that returns its own loss may be called so too: a loss comes after another model.
        loss = root is module and is_loss(module) and bool(self._roots)
        if len(self._called) > _LIMIT:
            self._called.clear()
        self._called[id(module)] = (weakref.ref(module), weakref.ref(root), loss)
        seen = self._roots.get(id(root))
        if seen is None or seen() is not root:
            if len(self._roots) > _LIMIT:
                self._roots.clear()
            self._roots[id(root)] = weakref.ref(root)
            self.fresh = True
        return None if loss else root

    def models(self) -> list[Any]:
        """The models called so far that still exist, in the order of their first calls."""
        found: dict[int, Any] = {}
        for _, reference, _ in list(self._called.values()):
            model = reference()
            if model is not None and self.has_parameters(model):
                found.setdefault(id(model), model)
        return list(found.values())
