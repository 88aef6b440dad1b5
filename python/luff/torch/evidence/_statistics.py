"""Running statistics of batch normalisation in models that are evaluated: whether they are still those of the start
while the weights are not, as in an average of weights that leaves buffers out. Another model with as many layers must
have other statistics: where none has, they are kept on purpose.

Looked at in evaluations 1, 2, 4, 8, … of a model; uses no torch operation.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from luff._weak import Identities
from luff.torch.capture._memory import Array, array_of
from luff.torch.capture._names import Names, unwrap
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Statistics"]

_MODELS, _LAYERS = 32, 64  # that are looked at
_ELEMENTS = 64  # of a weight that is remembered
_NORM = torch.nn.modules.batchnorm._BatchNorm


class _Evaluated:
    """A model that is evaluated."""

    __slots__ = ("calls", "layers", "told", "weight", "weights")

    def __init__(self, called: Any) -> None:
        model = unwrap(called)
        layers = [m for m in model.modules() if isinstance(m, _NORM) and m.running_mean is not None]
        self.layers = [weakref.ref(layer) for layer in layers[:_LAYERS]]
        weights = (p for p in model.parameters() if not is_lazy(p) and p.dim() > 1)
        first = next(weights, None) if layers else None
        self.weight: Any = None if first is None else weakref.ref(first)
        self.weights = _first_of(first)
        self.calls, self.told = 0, False


def _first_of(weight: Any) -> Array | None:
    values = None if weight is None else array_of(weight)
    return None if values is None else values.flat[:_ELEMENTS]


def _is_initial(layer: Any) -> bool:
    mean, variance = array_of(layer.running_mean), array_of(layer.running_var)
    return mean is not None and variance is not None and not mean.any() and bool((variance == 1).all())


def _has_others(model: Any, count: int) -> bool:
    """Whether a model has as many layers, of which one has other statistics than those of the start."""
    layers = [m for m in model.modules() if isinstance(m, _NORM) and m.running_mean is not None][:_LAYERS]
    return len(layers) == count and not all(_is_initial(layer) for layer in layers)


class Statistics(WaitingEvents):
    """Looks at the models of evaluations, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        self._models: Identities[_Evaluated] = Identities()

    def model_called(self, module: Any, names: Names) -> None:
        """Called when an evaluation calls a model."""
        seen = self._models.get(module)
        if seen is None:
            if len(self._models) >= _MODELS:
                return
            seen = self._models[module] = _Evaluated(module)
        if not seen.layers or module.training:
            return
        seen.calls += 1
        if seen.calls & (seen.calls - 1) or seen.weights is None:
            return
        weights = _first_of(seen.weight())
        layers = [layer for reference in seen.layers if (layer := reference()) is not None]
        moved = weights is not None and bool((weights != seen.weights).any())
        left = moved and bool(layers) and all(_is_initial(layer) for layer in layers)
        left = left and any(
            _has_others(model, len(seen.layers)) for model, _ in names.models() if model is not unwrap(module)
        )
        found = names.find(module)
        if left is not seen.told and found is not None:
            seen.told = left
            first = names.find(layers[0]) if left else None
            self.waiting.append(
                {
                    "kind": "initial_statistics",
                    "model": found[0],
                    "layers": len(layers) if left else 0,
                    "layer": "" if first is None else first[0],
                }
            )
