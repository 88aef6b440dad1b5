"""How far a model that is evaluated has come towards another one of the same shapes, as an average of its weights does:
from where it was at its first evaluation, as a share of the way to where the other one is now.

Looked at in evaluations 1, 2, 3, 4, 6, 8, 12, 16, … of a model; uses no torch operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from luff._weak import Identities
from luff.torch.capture._memory import array_of
from luff.torch.capture._names import Names, shapes_of, unwrap
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Averages"]

_MODELS = 32  # that are looked at
_WEIGHTS, _ELEMENTS = 8, 64  # of a model, and of a weight, that are compared
_LEAST = 64  # elements in all
_MOST_COPIED = 1 << 20  # elements of a weight that can't be read in place

Values = np.ndarray[Any, Any]


def _values_of(model: Any) -> Values | None:
    """Returns the first values of the first weights of a model; None if they can't be read."""
    chosen = [p for p in model.parameters() if not is_lazy(p) and p.dim() > 1][:_WEIGHTS]
    if any(p.dtype is torch.bfloat16 and p.numel() > _MOST_COPIED for p in chosen):
        return None
    arrays = [array_of(p) for p in chosen]
    if not arrays or any(a is None for a in arrays):
        return None
    values = np.concatenate([a.flat[:_ELEMENTS].astype(np.float64) for a in arrays if a is not None])
    return values if len(values) >= _LEAST and bool(np.isfinite(values).all()) else None


class _Evaluated:
    """A model that is evaluated."""

    __slots__ = ("calls", "first", "shapes", "way")

    def __init__(self, called: Any) -> None:
        model = unwrap(called)
        self.calls = 0
        self.first = _values_of(model)
        self.shapes = shapes_of(model)
        self.way: Values | None = None  # at the look before: from `first` to where the other one was then


class Averages(WaitingEvents):
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
        if seen.first is None:
            return
        seen.calls += 1
        if seen.calls > 1 and _is_due(seen.calls):
            self._look(seen, unwrap(module), names)

    def _look(self, seen: _Evaluated, model: Any, names: Names) -> None:
        now, found = _values_of(model), names.find(model)
        if now is None or found is None or seen.first is None or len(now) != len(seen.first):
            return
        came = now - seen.first
        if not came.any():
            return
        own = {id(p) for p in model.parameters()}
        for other, name in names.models():
            if (
                other is model
                or shapes_of(other) != seen.shapes
                or any(id(p) in own for p in other.parameters())
            ):
                continue
            there = _values_of(other)
            if there is None or len(there) != len(now):
                continue
            way = there - seen.first
            length = float(way @ way)
            if not length > 0:
                continue
            before, seen.way = seen.way, way
            if before is not None:
                self.waiting.append(
                    {
                        "kind": "average",
                        "model": found[0],
                        "of": name,
                        "share": float(came @ way) / length,
                        "steady": float(before @ way) / (length * float(before @ before)) ** 0.5,
                    }
                )
            return


def _is_due(calls: int) -> bool:
    """Whether a number is a power of two, or three times one."""
    third, rest = divmod(calls, 3)
    return not calls & (calls - 1) or (rest == 0 and not third & (third - 1))
