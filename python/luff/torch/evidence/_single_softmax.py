"""Finds softmaxes over a single value, which are always 1: over the only output of a linear layer."""

from __future__ import annotations

from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents

__all__ = ["SingleSoftmax"]

_MOST = 16  # layers, and events of a run
_BETWEEN = 4  # nodes between a layer and its softmax
_MOVES = frozenset(("View", "UnsafeView", "ReshapeAlias", "Clone", "ToCopy", "Alias"))
_LEAF = "torch::autograd::AccumulateGrad"


class SingleSoftmax(WaitingEvents):
    """Tells of the weights of such layers whenever they change."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[str] = []
        self._events = 0

    def look(self, nodes: list[Any], names: Names) -> None:
        """Called with all nodes behind the roots of a backward pass."""
        if self._events >= _MOST:
            return
        found = set()
        for node in nodes:
            if operation_of(node) in ("Softmax", "SafeSoftmax"):
                weight = _layer_of(node)
                name = None if weight is None else names.parameter(weight)
                if name is not None:
                    found.add(name)
        told = sorted(found)[:_MOST]
        if told != self._told:
            self._told = told
            self._events += 1
            self.waiting.append({"kind": "softmax_of_one", "layers": told})


def _layer_of(node: Any) -> Any:
    """Returns the weight of the layer over whose only output a softmax is taken; None if there is none."""
    try:
        shape = tuple(node._saved_result.shape)
        axis = int(node._saved_dim)
    except (RuntimeError, AttributeError):  # changed in place since, or freed
        return None
    axis -= 1 << 64 if axis >> 63 and axis > 0 else 0
    if len(shape) < 2 or axis not in (-1, len(shape) - 1) or shape[-1] != 1:
        return None
    made = node.next_functions[0][0]
    for _ in range(_BETWEEN):
        if operation_of(made) == "Add" and operation_of(made.next_functions[1][0]) == _LEAF:
            made = made.next_functions[0][0]  # the bias of a layer whose input lies otherwise in memory
        if operation_of(made) not in _MOVES:
            break
        sizes = getattr(made, "_saved_self_sym_sizes", (1,))
        if not sizes or int(sizes[-1]) != 1:
            return None  # another axis was the last
        made = made.next_functions[0][0]
    if operation_of(made) not in ("Addmm", "Mm"):
        return None
    turned = made.next_functions[-1][0]
    if operation_of(turned) != "T" or operation_of(turned.next_functions[0][0]) != _LEAF:
        return None
    weight = turned.next_functions[0][0].variable
    return weight if weight.dim() == 2 and weight.shape[0] == 1 else None
