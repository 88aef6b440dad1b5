"""Finds terms of a loss that have no graph: what computes them has parameters that get no gradient, and only their
value is added, as by ``mse_loss(values.detach(), returns)`` or ``loss + other.item()``.

Looked at in steps in which it is seen what backward passes reach, while parameters are left that none has reached.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.capture._memory import Array, array_of
from luff.torch.capture._modules import tensors_in
from luff.torch.capture._names import Names
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_terms import MOVES

__all__ = ["GraphlessTerms", "has_graphless_operand"]

_NODES = 64  # that are followed from a root
_BEHIND = 8192  # nodes behind a loss that are looked at
_CALLS = 16  # of losses in a step
_OUTPUTS = 64  # of modules in a step
_NUMBERS = 4096  # of an output that are kept
_COMPARED = 64  # numbers of what a loss gets
_LEAST = 4  # of them that differ
_LOOKS = 2  # that show it before it is told
_MOST = 16  # events of a run
_NAMES = 64  # in an event
_LEAF = "torch::autograd::AccumulateGrad"
_PASSES = frozenset(("Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Mean", "Sum", "Stack", "Cat")) | MOVES
_NEAR = 1e-5  # relative, of what is computed again
_EXACT = 1e-6  # relative, of a sum of a few numbers


def has_graphless_operand(root: Any) -> bool:
    """Returns whether a loss is a sum of which one operand, a single number, has no graph."""
    node = root.grad_fn
    queue, seen = [] if node is None else [node], {node}
    for one in queue:  # grows during the loop
        name = operation_of(one)
        children = [child for child, _ in one.next_functions]
        if None in children:
            if name in ("Add", "Sub") and _count(one) == 1:
                return True
            if name in ("Stack", "Cat") and _count(one) == len(children):
                return True
        if name in _PASSES:
            for child in children:
                if child is not None and child not in seen and len(seen) < _NODES:
                    seen.add(child)
                    queue.append(child)
    return False


def _count(node: Any) -> int:
    """Returns how many numbers a node's operation has made; -1 where that is not known."""
    try:
        return int(np.prod([int(size) for size in node._input_metadata[0].shape]))
    except (RuntimeError, AttributeError, IndexError, TypeError):  # older versions, symbolic sizes
        return -1


class GraphlessTerms(WaitingEvents):
    """Follows losses of parameters without a gradient, under the hook's lock and guard.

    Attributes
    ----------
    on
        Whether any parameter was without a gradient in each look so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self._first = True  # no look was made yet
        self._left: dict[int, Any] = {}  # weak references to these parameters, by their id
        self._modules: dict[int, tuple[Any, frozenset[int]]] = {}  # whose parameters are all among them
        self._kept: list[tuple[int, Array]] = []  # first rows of what they have returned in this step
        self._calls: list[tuple[str, str, frozenset[int]]] = []  # loss, how, and parameters
        self._operand = False
        self._added: dict[int, float | None] = {}  # other losses of this step, by their node
        self._whole = False  # the root is the sum of these
        self._shown: dict[int, int] = {}  # in how many looks in a row, by parameter
        self._how: dict[int, tuple[str, str]] = {}
        self._told: list[str] = []
        self._events = 0

    def returned(self, module: Any, output: Any) -> None:
        """Called when a module has returned, in steps in which modules are captured."""
        found = self._modules.get(id(module))
        if found is None or found[0]() is not module or len(self._kept) >= _OUTPUTS:
            return
        for tensor in tensors_in(output):
            rows = _rows_of(tensor)
            if rows is not None:
                self._kept.append((id(module), rows))
            return

    def called(self, kind: str, tensors: Iterable[Any], output: Any) -> None:
        """Called when a loss was computed in a TRAIN step of a look, of these tensors."""
        if len(self._calls) >= _CALLS:
            return
        if output.grad_fn is not None:
            reached = {
                id(node.variable)
                for node in nodes_behind([output.grad_fn], _BEHIND)
                if node.name() == _LEAF and id(node.variable) in self._left
            }
            how = "value"
            if not reached and len(self._added) < _CALLS:
                self._added[id(output.grad_fn)] = _number(output)
        else:
            reached = {one for tensor in tensors for number in self._makers(tensor) for one in number}
            how = "argument"
        if reached:
            self._calls.append((kind, how, frozenset(reached)))

    def backward_begins(self, roots: Iterable[Any]) -> None:
        """Called when a backward pass of a look begins."""
        for root in roots:
            if not self._operand and has_graphless_operand(root):
                self._operand = True
                self._whole = _is_sum(_number(root), list(self._added.values()))

    def looked(self, without: Iterable[Any], models: Iterable[Any], names: Names) -> None:
        """Called at the end of a step of a look with the parameters that got no gradient in it."""
        now = {id(parameter): weakref.ref(parameter) for parameter in without}
        calls, self._calls, self._kept = self._calls, [], []
        operand, self._operand = self._operand, False
        whole, self._whole = self._whole, False
        self._added = {}
        if self._first:
            self._first = False
            self._left = now
        else:
            self._left = {key: one for key, one in self._left.items() if one() is not None and key in now}
            if whole:
                calls = [(kind, "nothing" if how == "value" else how, of) for kind, how, of in calls]
            self._follow(calls, operand, names)
        self.on = bool(self._left) and self._events < _MOST
        self._modules = dict(_modules_of(models, self._left.keys())) if self.on else {}

    def _follow(self, calls: list[tuple[str, str, frozenset[int]]], operand: bool, names: Names) -> None:
        for kind, how, reached in calls:
            for key in reached:
                self._how[key] = kind, how
        of_calls = {key for _, _, reached in calls for key in reached}
        for key in of_calls & self._left.keys():
            self._shown[key] = self._shown.get(key, 0) + 1
        self._shown = {key: n for key, n in self._shown.items() if operand and key in self._left}
        shown = [key for key, count in self._shown.items() if count >= _LOOKS]
        named = {key: names.parameter(self._left[key]()) for key in shown}
        told = sorted(name for name in named.values() if name is not None)[:_NAMES]
        if told == self._told or self._events >= _MOST:
            return
        self._told = told
        self._events += 1
        kind, how = self._how[shown[0]] if told else ("", "")
        self.waiting.append({"kind": "graphless_term", "loss": kind, "lost": how, "layers": told})

    def _makers(self, tensor: Any) -> list[frozenset[int]]:
        """Returns the parameters of the modules that have returned the numbers that a loss gets."""
        if not self._kept:
            return []
        rows = _rows_of(tensor)
        numbers = None if rows is None else np.unique(rows.reshape(-1)[:_COMPARED])
        if numbers is None or numbers.size < _LEAST or not np.isfinite(numbers).all():
            return []
        made: dict[int, list[Array]] = {}
        for key, output in self._kept:
            made.setdefault(key, []).append(output)
        return [self._modules[key][1] for key, outputs in made.items() if _are_among(numbers, outputs)]


def _modules_of(
    models: Iterable[Any], left: Iterable[int]
) -> Iterable[tuple[int, tuple[Any, frozenset[int]]]]:
    """Yields the modules of which all parameters are among these, by their id, with these."""
    left = set(left)
    for model in models:
        for module in model.modules():
            held = frozenset(map(id, module.parameters()))
            if held and held <= left:
                yield id(module), (weakref.ref(module), held)


def _number(tensor: Any) -> float | None:
    """Returns the value of a tensor of one element; None if it has more, or is not in the memory of the CPU."""
    values = array_of(tensor) if tensor.numel() == 1 else None
    return None if values is None else float(values.reshape(-1)[0])


def _is_sum(number: float | None, terms: list[float | None]) -> bool:
    """Returns whether a number is the sum of these: whatever else was added to them is zero."""
    known = [term for term in terms if term is not None]
    if number is None or not known or len(known) < len(terms):
        return False
    return abs(number - sum(known)) <= _EXACT * sum(map(abs, known))


def _rows_of(tensor: Any) -> Array | None:
    """Returns a copy of a tensor's first rows, by its last axis; None if they cannot be read."""
    if not tensor.dtype.is_floating_point or not tensor.numel():
        return None
    values = array_of(tensor)
    if values is None:
        return None
    if values.ndim > 1:
        values = values[: max(1, _NUMBERS * len(values) // values.size)]
    if values.size > 16 * _NUMBERS:
        return None
    width = values.shape[-1] if values.ndim else 1
    return np.array(values, dtype=np.float64).reshape(-1, width)


def _are_among(numbers: Array, outputs: list[Array]) -> bool:
    """Returns whether a module has returned numbers, or a softmax or sigmoid makes them of what it has returned."""
    with np.errstate(all="ignore"):
        for link in (_as_they_are, _log_softmax, _softmax, _sigmoid, _log_sigmoid):
            made = np.sort(np.concatenate([link(output).reshape(-1) for output in outputs]))
            at = np.searchsorted(made, numbers).clip(1, max(1, made.size - 1))
            if made.size < 2:
                return False
            off = np.minimum(np.abs(made[at] - numbers), np.abs(made[at - 1] - numbers))
            near = 0.0 if link is _as_they_are else _NEAR
            if bool((off <= near * np.abs(numbers)).all()):
                return True
    return False


def _as_they_are(output: Array) -> Array:
    return output


def _log_softmax(output: Array) -> Array:
    output = output - output.max(axis=-1, keepdims=True)
    logs: Array = output - np.log(np.exp(output).sum(axis=-1, keepdims=True))
    return logs


def _softmax(output: Array) -> Array:
    shares: Array = np.exp(_log_softmax(output))
    return shares


def _sigmoid(output: Array) -> Array:
    shares: Array = 1.0 / (1.0 + np.exp(-output))
    return shares


def _log_sigmoid(output: Array) -> Array:
    logs: Array = -np.logaddexp(0.0, -output)
    return logs
