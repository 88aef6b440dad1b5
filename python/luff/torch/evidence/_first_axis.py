"""Looks for shares and lengths along the first axis of a tensor with several, or along all of its axes: where samples
lie first, they mix them.

A softmax, a division by a sum of the same numbers, by their length, or by the largest of them. Whether the samples lie
there, the model is asked (`_mixing`). The graph also shows whether what was shared out along the first axis weighs
values along another one: the weights of a sample do not add up to 1 then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from luff.torch.capture._graphs import operation_of
from luff.torch.evidence._events import WaitingEvents

__all__ = ["FirstAxisSoftmax", "Shared", "shared_along_first", "weighs_along_another"]

_MOST = 16  # nodes that are followed
_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze", "Expand")
_SAME = ("Clone", "ToCopy", "NativeDropout", "Mul", "Alias")  # each place keeps its axes
_SUMS = ("Sum", "Mean")
_DIVISORS = {"Sum": "sum", "LinalgVectorNorm": "norm", "Norm": "norm", "Max": "max", "Amax": "max"}


class Shared(NamedTuple):
    """What runs along the first axis."""

    node: Any
    shape: list[int]
    of: str  # "softmax"; "sum": numbers are divided by their sum; "norm": by their length; "max": by the largest
    whole: bool = False  # along all axes


class FirstAxisSoftmax(WaitingEvents):
    """Tells of the first softmax that a graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def look(self, nodes: list[Any]) -> None:
        """Called with all nodes behind the roots of a backward pass."""
        if self._told:
            return
        for node in nodes:
            if operation_of(node) not in ("Softmax", "SafeSoftmax"):
                continue
            if (shape := _of_softmax(node)) is not None and any(size > 1 for size in shape[1:]):
                self._told = True
                self.waiting.append({"kind": "softmax_first_axis", "shape": shape})
                return


def shared_along_first(nodes: Iterable[Any]) -> list[Shared]:
    """Returns what a graph shares out, or scales to one length, along the first axis."""
    found = []
    for node in nodes:
        operation = operation_of(node)
        if operation in ("Softmax", "SafeSoftmax"):
            if (shape := _of_softmax(node)) is not None:
                found.append(Shared(node, shape, "softmax"))
        elif operation == "Div" and (divided := _of_division(node)) is not None:
            found.append(divided)
    return found


def _of_softmax(node: Any) -> list[int] | None:
    """Returns the shape of a softmax that runs along the first of several axes; None if it does not."""
    try:
        shape = [int(size) for size in node._saved_result.shape]
        axis = _signed(node._saved_dim)
    except (RuntimeError, AttributeError):  # changed in place since, or freed
        return None
    return shape if axis in (0, -len(shape)) and len(shape) > 1 and shape[0] > 1 else None


def _of_division(node: Any) -> Shared | None:
    """Reads a quotient of numbers and their sum, length or largest, along the first axis or all."""
    following = [behind for behind, _ in node.next_functions]
    if len(following) != 2 or None in following:
        return None
    numbers, divisor = following
    for _ in range(4):  # the least divisor, an expansion, a number that is added
        if operation_of(divisor) not in ("Expand", "ClampMin", "Clamp", "Add", "Unsqueeze"):
            break
        divisor = divisor.next_functions[0][0]
    if operation_of(divisor) == "Sub" and operation_of(numbers) == "Sub":  # to a range of 0 to 1
        numbers, divisor = numbers.next_functions[0][0], divisor.next_functions[0][0]
    of = _DIVISORS.get(operation_of(divisor))
    if of is None:
        return None
    own = divisor.next_functions[0][0]
    if operation_of(own) == "Abs" and own is not numbers:
        own = own.next_functions[0][0]
    if own is not numbers:
        return None
    try:
        shape = [int(size) for size in node._input_metadata[0].shape]
        axes = getattr(divisor, "_saved_dim", None)
    except (RuntimeError, AttributeError, IndexError):
        return None
    if len(shape) < 2 or shape[0] < 2:
        return None
    axes = [axes] if isinstance(axes, int) else axes
    along = {_signed(axis) % len(shape) for axis in axes} if axes else {*range(len(shape))}
    if len(along) == len(
        shape
    ):  # one scale for all may be meant, as of numbers that are rounded to a few bits
        return None if of == "max" else Shared(node, shape, of, True)
    return Shared(node, shape, of) if along == {0} else None


def _signed(axis: Any) -> int:
    number = int(axis)
    return number - (1 << 64 if number >> 63 and number > 0 else 0)


def weighs_along_another(shared: Shared, users: dict[int, list[Any]]) -> bool:
    """Whether what was shared out along the first axis weighs values along another one, with no axes turned between:
    in a product of matrices along the last axis, or in a sum behind a product along any but the first.
    """
    if shared.of in ("norm", "max") or shared.whole:
        return False
    first, last = shared.shape[0], shared.shape[-1]
    reached, multiplied = [shared.node], {id(shared.node): False}
    for position in range(_MOST):
        if position >= len(reached):
            return False
        node = reached[position]
        for user in users.get(id(node), ()):
            operation, shape = operation_of(user), _shape_of(user)
            left = user.next_functions[0][0] is node
            of_own = _shape_of(node)
            if operation in ("Bmm", "Mm") and left and of_own and of_own[-1] == last > 1:
                return True
            if operation in _SUMS and multiplied[id(node)] and of_own and of_own[0] == first:
                axes = getattr(user, "_saved_dim", None)
                axes = [axes] if isinstance(axes, int) else axes
                if axes and all(_signed(axis) % len(of_own) for axis in axes):
                    return True
            if id(user) in multiplied or shape is None:
                continue
            if operation in _SAME or (operation in _VIEWS and (shape[0] == first or shape[-1] == last)):
                multiplied[id(user)] = multiplied[id(node)] or operation == "Mul"
                reached.append(user)
    return False


def _shape_of(node: Any) -> list[int] | None:
    """Returns the shape of what a node has made."""
    try:
        return [int(size) for size in node._input_metadata[0].shape] or None
    except (RuntimeError, AttributeError, IndexError):
        return None
