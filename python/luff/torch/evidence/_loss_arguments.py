"""Tells what losses are given beside outputs: weights of classes, targets that are no signs where signs are due,
labels in the place of outputs, and what CTC loss cannot learn from.

Tensors are read as memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._memory import INTEGERS, Array, address_of, array_of, array_view, is_readable
from luff.torch.evidence._ctc import ctc_breaks
from luff.torch.evidence._events import WaitingEvents

__all__ = ["LossArguments"]

_MOST = 64  # calls that are remembered, events of a run, and weights of an event
_ELEMENTS = 1 << 16  # of a target that is read
#: Weights of classes, and their place among the arguments of the function.
_WEIGHTS = {
    "CrossEntropyLoss": ("weight", 2),
    "NLLLoss": ("weight", 2),
    "BCEWithLogitsLoss": ("pos_weight", 6),
}
#: Losses whose targets are -1 and 1, and the place of the target among their arguments.
_SIGNS = {
    "CosineEmbeddingLoss": 2,
    "MarginRankingLoss": 2,
    "HingeEmbeddingLoss": 1,
    "SoftMarginLoss": 1,
}
#: Losses of answers and labels, which are another function when the two are exchanged.
_ONE_WAY = frozenset(("BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss"))
_OF_CTC = ("log_probs", "targets", "input_lengths", "target_lengths")


class LossArguments(WaitingEvents):
    """Tells of each call of a loss in a step, whenever that changes; of CTC loss, at each look that breaks a rule."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str, int], Any] = {}
        self._told = 0

    def called(
        self, kind: str, call: int, args: tuple[Any, ...], kwargs: dict[str, Any], module: Any
    ) -> None:
        """Called when a loss with a gradient was called.

        Parameters
        ----------
        call
            Its place among the calls of its kind in the step, as for its samples.
        module
            The loss, if it is a module; its weights are attributes.
        """
        if (place := _SIGNS.get(kind)) is not None:
            target = _read(_argument("target", place, args, kwargs))
            values = "" if target is None else _values(target)
            if values and self._known.get(("loss_target", kind, call)) != "others":  # which is for good
                self._tell("loss_target", kind, call, "values", values)
        elif kind == "CTCLoss":
            log_probs, targets, inputs, lengths = (
                _argument(name, place, args, kwargs) for place, name in enumerate(_OF_CTC)
            )
            blank = getattr(module, "blank", 0) if module is not None else _blank(args, kwargs)
            found = ctc_breaks(log_probs, targets, inputs, lengths, blank)
            if found is not None:
                self._tell_breaks(kind, call, found)
        elif kind in _WEIGHTS:
            name, place = _WEIGHTS[kind]
            given = _argument(name, place, args, kwargs) if module is None else getattr(module, name, None)
            weights = _read(given)
            if weights is not None and 0 < weights.size <= _MOST and np.isfinite(weights).all():
                self._tell("loss_weights", kind, call, name, [float(f"{w:.6g}") for w in weights.reshape(-1)])

    def in_order(self, kind: str, call: int, first: Any, second: Any) -> None:
        """Called with the first two arguments of a loss: tells whether labels stand where answers are expected."""
        if kind not in _ONE_WAY:
            return
        exchanged = bool(second.requires_grad and not first.requires_grad)
        if exchanged:
            labels = _read(first)
            exchanged = labels is not None and (
                _values(labels) == "zeros_and_ones"
                or (kind == "BCEWithLogitsLoss" and _are_shares(labels) and _go_beyond(_read(second)))
            )
        if exchanged or ("loss_exchanged", kind, call) in self._known:
            self._tell("loss_exchanged", kind, call, "exchanged", exchanged)

    def _tell(self, event: str, kind: str, call: int, name: str, value: Any) -> None:
        key = event, kind, call
        if self._told >= _MOST or self._known.get(key, "") == value:
            return
        self._known[key] = value
        self._told += 1
        self.waiting.append({"kind": event, "loss": kind, "call": call, name: value})

    def _tell_breaks(self, kind: str, call: int, found: list[str]) -> None:
        """Tells of each look that breaks something, and of the first one after it that does not, which is never
        left out.
        """
        key = "loss_ctc", kind, call
        if (not found and not self._known.get(key)) or (found and self._told >= _MOST):
            return
        self._told += bool(found)
        self._known[key] = found
        self.waiting.append({"kind": "loss_ctc", "loss": kind, "call": call, "breaks": found})


def _argument(name: str, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else None)


def _blank(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    blank = _argument("blank", 4, args, kwargs)
    return 0 if blank is None else blank


def _read(tensor: Any) -> Array | None:
    if not is_readable(tensor) or tensor.numel() > _ELEMENTS:
        return None
    kind = INTEGERS.get(tensor.dtype)
    if kind is None:
        return array_of(tensor)
    return array_view(tensor, kind) if address_of(tensor) else None


def _are_shares(values: Array) -> bool:
    return bool(values.size and (values >= 0).all() and (values <= 1).all())


def _go_beyond(values: Array | None) -> bool:
    """Whether some of a target's values lie outside of 0 to 1, where no probability does."""
    return values is not None and bool(np.isfinite(values).all() and ((values < 0) | (values > 1)).any())


def _values(target: Array) -> str:
    """Returns ``zeros_and_ones`` for a target of these two numbers; "" for one of ones only; else ``others``."""
    zeros, ones = (int(np.count_nonzero(target == value)) for value in (0, 1))
    if zeros + ones < target.size:
        return "others"
    return "zeros_and_ones" if zeros else ""
