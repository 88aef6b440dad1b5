"""Running statistics of batch normalisation in models that are evaluated: whether they are still those of the start, or
of their first evaluation, while the weights are not, as in an average of weights that leaves buffers out. Another model
with as many layers must have other statistics, and where they are not those of the start far other ones: where none
has, they are kept on purpose, or it does not matter.

Looked at in evaluations 1, 2, 4, 8, … of a model; uses no torch operation.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from luff._weak import Identities
from luff.torch.capture._memory import Array, array_of
from luff.torch.capture._names import Names, shapes_of, unwrap
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Statistics"]

_MODELS, _LAYERS = 32, 64  # that are looked at
_ELEMENTS = 64  # of a weight, and of a layer's statistics, that are remembered
_DEVIATIONS, _TIMES = 0.5, 2.0  # by which means, and variances, of most channels of a layer are far others
_NORM = torch.nn.modules.batchnorm._BatchNorm


class _Evaluated:
    """A model that is evaluated."""

    __slots__ = ("calls", "kept", "layers", "told", "weight", "weights")

    def __init__(self, called: Any) -> None:
        model = unwrap(called)
        layers = [m for m in model.modules() if isinstance(m, _NORM) and m.running_mean is not None]
        self.layers = [weakref.ref(layer) for layer in layers[:_LAYERS]]
        weights = (p for p in model.parameters() if not is_lazy(p) and p.dim() > 1)
        first = next(weights, None) if layers else None
        self.weight: Any = None if first is None else weakref.ref(first)
        self.weights = _first_of(first)
        self.kept = _kept(layers[:_LAYERS])
        self.calls, self.told = 0, ""


def _first_of(weight: Any) -> Array | None:
    values = None if weight is None else array_of(weight)
    return None if values is None else values.flat[:_ELEMENTS]


def _is_initial(layer: Any) -> bool:
    mean, variance = array_of(layer.running_mean), array_of(layer.running_var)
    return mean is not None and variance is not None and not mean.any() and bool((variance == 1).all())


def _kept(layers: list[Any]) -> list[tuple[Array, Array]] | None:
    """Returns the first means and variances of layers; None if they can't be read."""
    kept = []
    for layer in layers:
        mean, variance = array_of(layer.running_mean), array_of(layer.running_var)
        if mean is None or variance is None:
            return None
        kept.append((mean.flat[:_ELEMENTS].copy(), variance.flat[:_ELEMENTS].copy()))
    return kept


def _are_same(one: list[tuple[Array, Array]] | None, other: list[tuple[Array, Array]] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(
        np.array_equal(a, b)
        for pair, others in zip(one, other, strict=True)
        for a, b in zip(pair, others, strict=True)
    )


def _has_far_others(model: Any, kept: list[tuple[Array, Array]]) -> bool:
    """Whether a model has other statistics in all of as many layers, and in some of them far other ones."""
    layers = [m for m in model.modules() if isinstance(m, _NORM) and m.running_mean is not None][:_LAYERS]
    others = _kept(layers)
    if others is None or len(others) != len(kept):
        return False
    far = False
    for (mean, variance), (other_mean, other_variance) in zip(kept, others, strict=True):
        if mean.shape != other_mean.shape or np.array_equal(mean, other_mean):
            return False
        with np.errstate(all="ignore"):
            away = np.abs(mean - other_mean) > _DEVIATIONS * np.sqrt(np.maximum(variance, other_variance))
            ratio = other_variance / variance
        far = far or 2 * int((away | (ratio > _TIMES) | (ratio < 1 / _TIMES)).sum()) > mean.size
    return far


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
        others = [model for model, _ in names.models() if model is not unwrap(module)]
        left = ""
        if moved and layers:
            if all(_is_initial(layer) for layer in layers):
                left = "start" if any(_has_others(model, len(seen.layers)) for model in others) else ""
            elif _are_same(_kept(layers), seen.kept):
                shapes = shapes_of(unwrap(module))
                far = (shapes_of(one) == shapes and _has_far_others(one, seen.kept or []) for one in others)
                left = "kept" if any(far) else ""
        found = names.find(module)
        if left != seen.told and found is not None:
            seen.told = left
            first = names.find(layers[0]) if left else None
            self.waiting.append(
                {
                    "kind": "initial_statistics",
                    "model": found[0],
                    "layers": len(layers) if left else 0,
                    "layer": "" if first is None else first[0],
                    "kept": left == "kept",
                }
            )
