"""Checkpoints loaded into models: which names matched. Most are loaded before the run
is open, and wait until then.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from luff.torch.capture._memory import address_of
from luff.torch.capture._names import class_name, unwrap
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Loads"]

_MAX_LOADS = 32  # in one run
_MAX_OF_A_MODEL = 4
_MAX_NAMES = 64


class Loads(WaitingEvents):
    """Checkpoints that were loaded and are not yet recorded. Bounded."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._models: dict[int, list[Any]] = {}  # id -> [weak reference to the model, number of loads so far]

    def hand_over(self) -> Loads:
        """Returns what waits, for the run of the process's next training."""
        later = Loads()
        later.waiting, self.waiting = self.waiting, []
        later._count = len(later.waiting)
        return later

    def loaded(self, model: Any, state: Any, strict: Any, result: Any, assigned: bool = False) -> None:
        """Called when `load_state_dict` has returned.

        Parameters
        ----------
        model
            The module whose method was called.
        state
            The state that was passed.
        strict
            Whether all names had to match.
        result
            The returned value: missing and unexpected names; None from an overridden method.
        assigned
            Whether the model took the state's tensors themselves (`assign=True`), and copied nothing.
        """
        if self._count >= _MAX_LOADS:
            return
        known = self._models.setdefault(id(model), [weakref.ref(model), 0])
        if known[0]() is not model:
            known[:] = [weakref.ref(model), 0]
        known[1] += 1
        if known[1] > _MAX_OF_A_MODEL:
            return
        self._count += 1
        own = _names_of(model)
        missing, unexpected = getattr(result, "missing_keys", None), getattr(result, "unexpected_keys", None)
        if missing is None or unexpected is None:
            given = list(state)
            missing = [name for name in own if name not in state]
            unexpected = [name for name in given if name not in own]
        missing = [name for name in missing if name in own]  # without extra state of modules
        self.waiting.append(
            {
                "kind": "load_state_dict",
                "model": class_name(unwrap(model)),
                "strict": bool(strict),
                "matched": len(own) - len(missing),
                "own": 0 if assigned else _own_tensors(model, state),
                "missing": [str(name) for name in missing[:_MAX_NAMES]],
                "missing_count": len(missing),
                "unexpected": [str(name) for name in unexpected[:_MAX_NAMES]],
                "unexpected_count": len(unexpected),
            }
        )


def _own_tensors(model: Any, state: Any) -> int:
    """Returns how many of the state's tensors are those of the model itself: loading them changes nothing."""
    count = 0
    if isinstance(state, Mapping):
        for name, one in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
            given = state.get(name)
            if isinstance(given, torch.Tensor) and one.numel() and given.shape == one.shape:
                address = address_of(one)
                count += bool(address) and address == address_of(given)
    return count


def _names_of(model: Any) -> set[str]:
    """Returns the names of the parameters and buffers in a checkpoint of the model; touches no tensor."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for path, module in model.named_modules(remove_duplicate=False):
        left_out = getattr(module, "_non_persistent_buffers_set", ())
        prefix = f"{path}." if path else ""
        names.update(
            prefix + name
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in left_out
        )
    return names
