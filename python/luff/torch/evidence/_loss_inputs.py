"""Finds which operation made what a loss gets as its output of the model, in the graph of the forward pass."""

from __future__ import annotations

from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._events import WaitingEvents

__all__ = ["LossInputs"]

_LOOKED = 16  # TRAIN steps at which calls are looked at; later those that are powers of two
_MOST = 64  # calls that are remembered, and events of a run
_NODES = 8  # that are followed from the loss's argument
#: Operations that only move or copy values.
_MOVES = frozenset(
    {
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "T",
        "Permute",
        "Clone",
        "ToCopy",
    }
    | {"Slice", "Select", "Index", "Alias", "Contiguous"}
)
#: Names of operations that limit values, as docs/spec/evidence.md lists them.
_LIMITS = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "Hardsigmoid": "sigmoid",
    "Tanh": "tanh",
    "Hardtanh": "tanh",
    "Relu": "relu",
    "Gelu": "gelu",
    "Silu": "silu",
    "Softplus": "softplus",
    "Exp": "exp",
}


def _makers(tensor: Any) -> tuple[str, str]:
    """Returns the operation that made a tensor's values, and the one that made what it got; "" for one that does not
    limit them.
    """
    node, found = tensor.grad_fn, ""
    for _ in range(_NODES):
        if node is None:
            break
        name = operation_of(node)
        if name not in _MOVES:
            limits = _LIMITS.get(name, "")
            if found or not limits:
                return found, limits
            found = limits
        node = node.next_functions[0][0]
    return found, ""


class LossInputs(WaitingEvents):
    """Tells of each call of a loss in a step which operation made its first argument, whenever that changes."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, int], tuple[str, str]] = {}
        self._told = 0

    def due(self, step: int) -> bool:
        """Returns whether calls are looked at; `step`: TRAIN steps before this one, of the process or since
        optimizers or weights changed.
        """
        return self._told < _MOST and (step < _LOOKED or not step & (step - 1))

    def loss_called(self, kind: str, call: int, tensor: Any) -> None:
        """Called when a loss with a gradient was called.

        Parameters
        ----------
        call
            Its place among the calls of its kind in the step, as for its samples.
        tensor
            Its first tensor argument.
        """
        key = kind, call
        if key not in self._known and len(self._known) >= _MOST:
            return
        makers = made_by, behind = _makers(tensor)
        if makers == self._known.get(key, ("", "")):
            return
        self._known[key] = makers
        self._told += 1
        event = {"kind": "loss_input", "loss": kind, "call": call, "made_by": made_by}
        self.waiting.append(event | ({"behind": behind} if behind else {}))
