"""Finds numbers that are normalised alone, so that the same comes out whatever they are, and parameters whose every way
to the loss leads through such a constant.

A number over its own sum, or over its own length; less its own mean; a softmax of the one best score; a layer
normalisation of one feature, a group normalisation with one value a group.
"""

from __future__ import annotations

from typing import Any

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents

__all__ = ["NormsOfOne"]

_MOST = 16  # names, and events of a run
_LOOKS = 3  # in a row that show it: sequences may have one place now and then
_LEAF = "torch::autograd::AccumulateGrad"
_SOFTMAXES = ("Softmax", "SafeSoftmax")
_VIEWS = frozenset(("View", "UnsafeView", "ReshapeAlias", "Clone", "ToCopy", "Alias", "Unsqueeze", "Squeeze"))
_OVER = frozenset(("Expand", "ClampMin", "Clamp", "Add", "Unsqueeze", *_VIEWS))
_DIVISORS = {"Sum": "sum", "LinalgVectorNorm": "length", "Norm": "length"}
_CHAIN = 6
_ARE_CHOSEN = ("Topk", "Max", "Amax", "Sort")


class NormsOfOne(WaitingEvents):
    """Tells of the names of such parameters whenever they change."""

    def __init__(self) -> None:
        super().__init__()
        self._looks: dict[str, int] = {}  # by name: in how many looks it was cut off
        self._reached: set[str] = set()  # of these, what some loss reaches in another way
        self._told: list[str] = []
        self._events = 0

    def look(self, nodes: list[Any], users: dict[int, list[Any]], names: Names) -> None:
        """Called with all nodes behind the roots of a backward pass."""
        if self._events >= _MOST:
            return
        constants = {id(node): kind for node in nodes if (kind := _kind_of(node))}
        if not constants and not self._looks:
            return
        cut = _cut_off(nodes, users, constants)
        named = {name: id(node) in cut for node in nodes if (name := _name_of(node, names)) is not None}
        self._reached |= {name for name, off in named.items() if not off and name in self._looks}
        for name, off in named.items():
            if off and (name in self._looks or len(self._looks) < 4 * _MOST):
                self._looks[name] = self._looks.get(name, 0) + 1
        told = sorted(
            name for name, looks in self._looks.items() if looks >= _LOOKS and name not in self._reached
        )[:_MOST]
        if told != self._told:
            self._told = told
            self._events += 1
            of = sorted(set(constants.values()))
            self.waiting.append({"kind": "norm_of_one", "of": of[0] if of else "", "layers": told})


def _name_of(node: Any, names: Names) -> str | None:
    return names.parameter(node.variable) if node.name() == _LEAF else None


def _cut_off(nodes: list[Any], users: dict[int, list[Any]], constants: dict[int, str]) -> set[int]:
    """Returns the leaves that no way reaches which avoids the constants. Where one best score is chosen, a mean of the
    scores' shares over samples is no way: it keeps experts evenly used, and knows nothing of their answers.
    """
    if not constants:
        return set()
    behind: set[int] = set()
    for node in nodes:  # from the loss on: what is used comes behind its users, or is met again
        if id(node) in constants:
            _collect(node, behind)
    chosen = any(id(node) in behind and operation_of(node) in _ARE_CHOSEN for node in nodes)
    reached: set[int] = set()
    open_nodes = [node for node in nodes if id(node) not in users]
    while open_nodes:
        node = open_nodes.pop()
        if id(node) in reached:
            continue
        reached.add(id(node))
        if id(node) in constants:
            if constants[id(node)] in ("layer", "group"):  # its own weights
                open_nodes += [one for one, _ in node.next_functions[1:] if one is not None]
            continue
        if chosen and _is_balance(node, behind):
            continue
        open_nodes += [one for one, _ in node.next_functions if one is not None]
    return {id(node) for node in nodes if node.name() == _LEAF and id(node) not in reached}


def _collect(node: Any, behind: set[int]) -> None:
    stack = [node]
    while stack:
        for one, _ in stack.pop().next_functions:
            if one is not None and id(one) not in behind:
                behind.add(id(one))
                stack.append(one)


def _is_balance(node: Any, behind: set[int]) -> bool:
    operation = operation_of(node)
    if operation not in ("Mean", "Sum", "Logsumexp"):
        return False
    inner = node.next_functions[0][0]
    for _ in range(_CHAIN):
        if operation_of(inner) not in _VIEWS:
            break
        inner = inner.next_functions[0][0]
    if inner is None or id(inner) not in behind:
        return False
    return operation == "Logsumexp" or operation_of(inner) in (*_SOFTMAXES, "Sigmoid")


def _kind_of(node: Any) -> str:
    """Returns how a node makes a constant; empty if it does not."""
    operation = operation_of(node)
    try:
        if operation == "Div":
            return _of_division(node)
        if operation == "Sub":
            return _of_difference(node)
        if operation in _SOFTMAXES:
            return _of_softmax(node)
        if operation == "NativeLayerNorm":
            return "layer" if _product(node._saved_normalized_shape) == 1 else ""
        if operation == "NativeGroupNorm":
            return "group" if node._saved_C * node._saved_HxW == node._saved_group else ""
    except (
        RuntimeError,
        AttributeError,
        IndexError,
        TypeError,
    ):  # freed, changed in place, or saved otherwise
        return ""
    return ""


def _of_division(node: Any) -> str:
    if len(node.next_functions) != 2:  # by a number
        return ""
    numbers, divisor = node.next_functions
    if numbers[0] is None or divisor[0] is None:
        return ""
    made = divisor[0]
    for _ in range(_CHAIN):
        if operation_of(made) not in _OVER:
            break
        if (
            operation_of(made) == "Add"
            and len(made.next_functions) == 2
            and made.next_functions[1][0] is not None
        ):
            return ""  # of two sums
        made = made.next_functions[0][0]
    of = _DIVISORS.get(operation_of(made), "")
    return of if of and made.next_functions[0] == numbers and _is_along_one(made, numbers) else ""


def _of_difference(node: Any) -> str:
    if len(node.next_functions) != 2:  # a number less
        return ""
    numbers, mean = node.next_functions
    if numbers[0] is None or operation_of(mean[0]) != "Mean":
        return ""
    own = mean[0].next_functions[0] == numbers and node._saved_alpha == 1
    return "mean" if own and _is_along_one(mean[0], numbers) else ""


def _of_softmax(node: Any) -> str:
    shape, axis = node._saved_result.shape, _signed(node._saved_dim)
    if len(shape) < 2 or shape[axis] != 1:
        return ""
    made = node.next_functions[0][0]
    for _ in range(_CHAIN):
        if operation_of(made) not in _VIEWS:
            break
        made = made.next_functions[0][0]
    return "best" if operation_of(made) in _ARE_CHOSEN else ""


def _is_along_one(node: Any, numbers: tuple[Any, int]) -> bool:
    """Whether a sum, mean or length is taken along axes of one place."""
    axes = node._saved_dim
    axes = [axes] if isinstance(axes, int) else axes
    made, at = numbers
    shape = [
        int(size)
        for size in (made.variable.shape if made.name() == _LEAF else made._input_metadata[at].shape)
    ]
    return bool(axes) and len(shape) > 1 and all(shape[_signed(axis)] == 1 for axis in axes)


def _product(sizes: Any) -> int:
    product = 1
    for size in sizes:
        product *= int(size)
    return product


def _signed(axis: Any) -> int:
    number = int(axis)
    return number - (1 << 64 if number >> 63 and number > 0 else 0)
