"""Determines in which mode a model was called: its own flag, and those of modules whose result depends on it.

Checking every dropout at each call would cost too much. After the first calls, modules are checked only when the
model's own flag has changed, and at every 16th call.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from luff.torch.capture._names import unwrap

__all__ = ["ModeFlags"]

_TRAINING, _SOME_TRAIN, _SOME_EVAL, _GRADIENTS, _TOLD = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
_ALWAYS = 64  # calls at each of which all modules are checked
_EVERY = 16  # and then at every 16th
_LIMIT = 4096  # models remembered
_DROPOUT = torch.nn.modules.dropout._DropoutNd
_NORM = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
# names in other libraries
_PATH_DROPOUT = frozenset({"DropPath", "StochasticDepth", "DropBlock2d", "DropBlock3d"})


def depends_on_mode(module: Any) -> bool:
    """Returns whether the module computes something else in training than in evaluation."""
    if isinstance(module, _DROPOUT):
        return bool(module.p > 0)
    if isinstance(module, _NORM):
        return module.running_mean is not None or bool(module.track_running_stats)
    if isinstance(module, torch.nn.RNNBase):
        return bool(module.dropout > 0 and module.num_layers > 1)
    if isinstance(module, torch.nn.MultiheadAttention):
        return bool(module.dropout > 0)
    if type(module).__name__ in _PATH_DROPOUT:
        share = getattr(module, "drop_prob", getattr(module, "p", 0))
        return isinstance(share, int | float) and share > 0
    return False


class _Watched:
    """One model: its modules that depend on the mode, and the last answer."""

    __slots__ = ("answer", "called", "calls", "model", "modules", "training")

    def __init__(self, called: Any) -> None:
        model = unwrap(called)
        self.called = weakref.ref(called)
        self.model: Any = None if model is called else weakref.ref(model)
        self.modules: list[Any] = []
        self.training: bool | None = None
        self.calls = 0
        self.answer = 0


class ModeFlags:
    """Computes bits 8 to 12 of the event `forward` (docs/spec/evidence.md)."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._last = 0  # the answer for the newest call

    @property
    def evaluates(self) -> bool:
        """Whether the newest call was of a model in evaluation mode, with all of its modules that depend on it."""
        return not self._last & (_TRAINING | _SOME_TRAIN)

    @property
    def trains_in_part(self) -> bool:
        """Whether a module that depends on the mode was in training mode at the newest call."""
        return bool(self._last & _SOME_TRAIN)

    def bits(self, model: Any) -> int:
        """Returns the bits for a call, which begins now, of a model or of its wrapper."""
        watched = self._watched.get(id(model))
        if watched is None or watched.called() is not model:
            if len(self._watched) >= _LIMIT:
                self._watched.clear()
            watched = self._watched[id(model)] = _Watched(model)
        if watched.model is not None:
            model = watched.model() or model
        watched.calls = calls = watched.calls + 1
        if model.training is not watched.training or calls <= _ALWAYS or not calls % _EVERY:
            self._look(watched, model)
        self._last = watched.answer
        return watched.answer | _GRADIENTS if torch.is_grad_enabled() else watched.answer

    @staticmethod
    def _look(watched: _Watched, model: Any) -> None:
        # at calls 1, 2, 4, 8, ..., since modules may have been added
        if not watched.calls & (watched.calls - 1):
            watched.modules = [weakref.ref(module) for module in model.modules() if depends_on_mode(module)]
        watched.training = model.training
        answer = _TOLD | (_TRAINING if model.training else 0)
        for reference in watched.modules:
            module = reference()
            if module is not None:
                answer |= _SOME_TRAIN if module.training else _SOME_EVAL
        watched.answer = answer
