"""Finds which operation made what a loss gets as its output of the model, in the graph of the forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_graph import constant_factor
from luff.torch.evidence._loss_terms import axis_of, past, read

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
_MASKS = frozenset(("MaskedFill", "Where", "Add", "Sub"))  # with constants
_CLAMPS = frozenset(("Clamp", "ClampMin", "ClampMax"))
_ERRORS = frozenset(("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"))
_SLACK, _CUT = 1e-3, 0.01  # beyond a bound, and the share of values that are
_UNIT = 1e-2  # of the square of a length of 1, in bfloat16 too


def _clamped(node: Any) -> tuple[float, float] | None:
    """Returns the bounds of a clamp; None if they are tensors."""
    low, high = (getattr(node, name, None) for name in ("_saved_min", "_saved_max"))
    if any(one is not None and not isinstance(one, int | float) for one in (low, high)):
        return None
    return -np.inf if low is None else float(low), np.inf if high is None else float(high)


def _cuts(node: Any) -> bool:
    """Returns whether a clamp cuts off what scores need: one sign, or all that is larger than 1. Wider ones keep
    numbers from overflowing.
    """
    bounds = _clamped(node)
    return bounds is not None and (
        bounds[0] >= 0.0 or bounds[1] <= 0.0 or (bounds[0] >= -1.0 and bounds[1] <= 1.0)
    )


def _has_cut(node: Any) -> bool:
    """Returns whether a clamp has changed a share of what it got: other bounds are met by nature."""
    bounds, given = _clamped(node), read(node._saved_self)
    if bounds is None or given is None or not given.size:
        return False
    beyond = (given < bounds[0] - _SLACK) | (given > bounds[1] + _SLACK)
    return float(beyond.mean()) > _CUT


def _limit_of(node: Any, name: str, readable: bool) -> str:
    """Returns how an operation limits values, as docs/spec/evidence.md lists it; "" for one that does not."""
    if name not in _CLAMPS:
        return _LIMITS.get(name, "")
    try:
        if not readable or not _cuts(node) or not _has_cut(node):
            return ""
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return ""
    # What keeps a probability from 0 and 1 limits nothing that is not limited already.
    return "" if _LIMITS.get(operation_of(past(node.next_functions[0][0])), "") else "clamp"


def _makers(tensor: Any, readable: bool) -> tuple[str, str]:
    """Returns the operation that made a tensor's values, and the one that made what it got; "" for one that does not
    limit them.
    """
    node, found = tensor.grad_fn, ""
    for _ in range(_NODES):
        if node is None:
            break
        name = operation_of(node)
        if name not in _MOVES:
            limits = _limit_of(node, name, readable)
            if found or not limits:
                return found, limits
            found = limits
        node = node.next_functions[0][0]
    return found, ""


def _range_of(tensor: Any) -> tuple[float, float] | None:
    """Returns both bounds of the clamp that made a tensor's values; None for anything else. One bound, as of what is
    never below 0, is often right but for the noise of targets.
    """
    node = past(tensor.grad_fn)
    bounds = _clamped(node) if operation_of(node) in _CLAMPS else None
    return None if bounds is None or np.isinf(bounds).any() else bounds


def _bound_of(node: Any, deep: bool = True) -> float:
    """Returns the largest size of scores that are cosines times constants; 0 for others. `deep`: of what is put side
    by side, too, as scores of positives and of negatives.
    """
    factor = 1.0
    for _ in range(_NODES):
        name = operation_of(node)
        moving = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        if name == "Cat" and deep and len(moving) == len(node.next_functions):
            bounds = [_bound_of(child, False) for child in moving]
            return factor * max(bounds) if all(bounds) else 0.0
        if len(moving) != 1:
            break
        if name in ("Mul", "Div"):
            one = constant_factor(node, name == "Div")
            if one is None:
                return 0.0
            factor *= abs(one)
        elif name not in _MOVES and name not in _MASKS:
            break
        node = moving[0]
    return factor if _are_cosines(node) else 0.0


def _are_cosines(node: Any) -> bool:
    """Returns whether a node multiplies vectors of length 1 with each other: as matrices, or as a sum of products."""
    name = operation_of(node)
    if name in ("Mm", "Bmm"):
        return _are_units(read(node._saved_self), -1) and _are_units(read(node._saved_mat2), -2)
    if name != "Sum":
        return False
    dims, product = node._saved_dim, past(node.next_functions[0][0])
    if len(dims) != 1 or operation_of(product) != "Mul":
        return False
    one, other = read(product._saved_self), read(product._saved_other)
    if one is None or other is None or one.ndim != other.ndim:
        return False
    axis = axis_of(dims[0], one.ndim)
    return _are_units(one, axis) and _are_units(other, axis)


def _are_units(vectors: Array | None, axis: int) -> bool:
    """Returns whether all vectors along an axis are of length 1, and of two numbers at least."""
    if vectors is None or vectors.ndim < 2 or not vectors.size or vectors.shape[axis] < 2:
        return False
    lengths = np.square(vectors, dtype=np.float64).sum(axis=axis)
    return bool((abs(lengths - 1) < _UNIT).all() and (np.count_nonzero(vectors, axis=axis) > 1).all())


def _bound(tensor: Any) -> float:
    try:
        return float(f"{_bound_of(tensor.grad_fn):.3g}")
    except (RuntimeError, AttributeError, IndexError):  # changed in place since, or saved under another name
        return 0.0


def _range(tensor: Any) -> tuple[float, float] | None:
    try:
        return _range_of(tensor)
    except (RuntimeError, AttributeError, IndexError):
        return None


class LossInputs(WaitingEvents):
    """Tells of each call of a loss in a step which operation made its first argument, whenever that changes."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, int], tuple[str, str, float, tuple[float, float] | None]] = {}
        self._told = 0

    def due(self, step: int) -> bool:
        """Returns whether calls are looked at; `step`: TRAIN steps before this one, of the process or since
        optimizers or weights changed.
        """
        return self._told < _MOST and (step < _LOOKED or not step & (step - 1))

    def loss_called(self, kind: str, call: int, tensor: Any, readable: bool = True) -> None:
        """Called when a loss with a gradient was called.

        Parameters
        ----------
        call
            Its place among the calls of its kind in the step, as for its samples.
        tensor
            Its first tensor argument.
        readable
            Whether saved tensors of the graph can be read: no hooks are in use for them.
        """
        key = kind, call
        if key not in self._known and len(self._known) >= _MOST:
            return
        made_by, behind = _makers(tensor, readable)
        bound = _bound(tensor) if readable and kind == "CrossEntropyLoss" else 0.0
        clamped = _range(tensor) if kind in _ERRORS else None
        if (made_by, behind, bound, clamped) == self._known.get(key, ("", "", 0.0, None)):
            return
        self._known[key] = made_by, behind, bound, clamped
        self._told += 1
        event: dict[str, Any] = {"kind": "loss_input", "loss": kind, "call": call, "made_by": made_by}
        if behind:
            event["behind"] = behind
        if bound:
            event["bound"] = bound
        if clamped is not None:
            event["clamped"] = list(clamped)
        self.waiting.append(event)
