"""Checkpoints loaded into models: which names matched; and weights that were set anew before another optimizer
began. Most are loaded before the run is open, and wait until then.
"""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from luff.torch.capture._memory import address_of
from luff.torch.capture._names import class_name, unwrap
from luff.torch.evidence._events import WaitingEvents

__all__ = ["Loads"]

_MAX_LOADS = 32  # in one run
_MAX_OF_A_MODEL = 4
_MAX_FOLDS = 256  # loads, and weights set anew, with another optimizer, which are told beside those
_MAX_NAMES = 64
_MAX_OPTIMIZERS = 8
_GROUPS, _LOOKS = 4, 4  # of an optimizer, and parameters of each, about, whose writes are counted
_VERSION = attrgetter("_version")


class Loads(WaitingEvents):
    """Checkpoints that were loaded and are not yet recorded. Bounded."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._folds = 0
        self._newest = -1  # number of the optimizer that began last
        #: id -> [weak reference to the model, number of loads so far, newest optimizer at the last of them]
        self._models: dict[int, list[Any]] = {}
        self._updated: dict[int, _Updated] = {}  # by the number of the optimizer

    def updated(self, number: int, optimizer: Any) -> None:
        """Called when an optimizer has updated its parameters: at each update, so it does little."""
        try:
            known = self._updated[number]
        except KeyError:
            if number > self._newest:
                self._newest = number
                self._updated = {
                    key: one for key, one in self._updated.items() if one.optimizer() is not None
                }
            if len(self._updated) >= _MAX_OPTIMIZERS:
                return
            known = self._updated[number] = _Updated(optimizer)
        try:
            (group,) = optimizer.param_groups
            known.writes = list(map(_VERSION, group["params"][known.places]))
        except Exception:  # several groups; an optimizer of another form, or a tensor that counts nothing
            known.writes = _writes_of_groups(optimizer)

    def written(self, number: int) -> bool:
        """Whether one of an optimizer's weights was written since its last update. Called at each: it does little."""
        try:
            known = self._updated[number]
            return bool(known.probe()._version != known.writes[known.probed])
        except Exception:  # not known, or an optimizer of another form
            return False

    def begins(self, optimizer: Any) -> None:
        """Called when an optimizer is about to make its first update. Tells where all of the weights that are looked at
        were written since the last update of an earlier optimizer: set anew by `reset_parameters`, say, between folds.
        """
        if self._folds >= _MAX_FOLDS or self._newest not in self._updated:
            return  # of the earlier ones the last is not known
        writes: dict[int, int] = {}
        ones = {id(one): one for one in _parameters_of(optimizer)}
        for updated in self._updated.values():
            for one, count in updated.now():
                if ones.get(id(one)) is one:
                    writes[id(one)] = max(writes.get(id(one), 0), count)
        try:
            written = bool(writes) and all(ones[key]._version > count for key, count in writes.items())
        except RuntimeError:  # a tensor without a counter
            return
        if written:
            self._folds += 1
            self.waiting.append({"kind": "weights_written", "weights": len(writes)})

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
        if not self._is_told(model):
            return
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
                "own": _own_tensors(model, state) if not assigned and self._is_as_updated(model) else 0,
                "missing": [str(name) for name in missing[:_MAX_NAMES]],
                "missing_count": len(missing),
                "unexpected": [str(name) for name in unexpected[:_MAX_NAMES]],
                "unexpected_count": len(unexpected),
            }
        )

    def _is_told(self, model: Any) -> bool:
        """Whether a load is told: a few of each model, and any with another optimizer since the load before it, since
        folds may be many.
        """
        known = self._models.get(id(model))
        if known is None or known[0]() is not model:
            if self._count >= _MAX_LOADS:
                return False
            known = self._models[id(model)] = [weakref.ref(model), 0, self._newest]
        another, known[2] = self._newest > known[2], self._newest
        known[1] += 1
        if known[1] <= _MAX_OF_A_MODEL and self._count < _MAX_LOADS:
            self._count += 1
            return True
        if another and self._folds < _MAX_FOLDS:
            self._folds += 1
            return True
        return False

    def _is_as_updated(self, model: Any) -> bool:
        """Whether nothing but the load has written the model's parameters since an optimizer did.

        A state of the model's own tensors may have been changed in place before it was loaded: clipped, averaged, or
        filled from a file. Each write counts; that of the load is one.
        """
        own = {id(one) for one in model.parameters()}
        found = [
            (one, writes)
            for updated in self._updated.values()
            for one, writes in updated.now()
            if id(one) in own
        ]
        try:
            return bool(found) and all(one._version == writes + 1 for one, writes in found)
        except RuntimeError:  # a tensor without a counter
            return False


def _parameters_of(optimizer: Any) -> list[Any]:
    try:
        return [one for group in optimizer.param_groups for one in group["params"]]
    except Exception:  # an optimizer of another form
        return []


def _chosen(optimizer: Any) -> list[Any]:
    """Returns parameters spread over each group."""
    groups = [group["params"] for group in optimizer.param_groups[:_GROUPS]]
    return [one for parameters in groups for one in parameters[_places(parameters)]]


def _places(parameters: list[Any]) -> slice:
    return slice(None, None, max(1, len(parameters) // _LOOKS))


def _writes_of_groups(optimizer: Any) -> list[int]:
    try:
        return [int(one._version) for one in _chosen(optimizer)]
    except Exception:  # an optimizer of another form, or a tensor that counts nothing
        return []


class _Updated:
    """Some of an optimizer's parameters, and how often each was written up to the end of the newest update."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._ones: list[weakref.ref[Any]] = []
        self.places = slice(None)  # of the only group
        self.writes: list[int] = []
        #: The first of these parameters that is a matrix, or else the last of them, and its place.
        self.probe: Any = None
        self.probed = 0
        try:
            self.places = _places(optimizer.param_groups[0]["params"])
            chosen = _chosen(optimizer)
            self._ones = [weakref.ref(one) for one in chosen]
            self.probed = next((at for at, one in enumerate(chosen) if one.dim() > 1), len(chosen) - 1)
            self.probe = self._ones[self.probed]
        except Exception:  # an optimizer of another form
            self._ones = []

    def now(self) -> list[tuple[Any, int]]:
        """Returns the parameters that are still there with those numbers; none if the groups have changed since."""
        if len(self._ones) != len(self.writes):
            return []
        pairs = zip(self._ones, self.writes, strict=True)
        return [(one, writes) for reference, writes in pairs if (one := reference()) is not None]


def _own_tensors(model: Any, state: Any) -> int:
    """Returns how many of the state's tensors are those of the model itself."""
    count = 0
    if not isinstance(state, dict):  # another mapping may read a file for each name
        return 0
    try:
        for name, one in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
            given = state.get(name)
            if isinstance(given, torch.Tensor) and not is_lazy(one) and not is_lazy(given) and one.numel():
                address = address_of(one)
                count += bool(address) and address == address_of(given) and _layout(one) == _layout(given)
    except Exception:  # tensors of another kind
        return 0
    return count


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


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
