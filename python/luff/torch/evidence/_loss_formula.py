"""Reads the formula of a loss that a script writes itself in the graph of a backward pass, and finds what cannot be
meant: a softmax over another axis than that of the classes, a missing minus, half of a formula.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import INTEGERS, Array, address_of, array_of, array_view, is_readable
from luff.torch.evidence._actor_critic import gains_move
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_graph import constant_factor, is_square

__all__ = ["LossFormula", "fault_of"]

_NODES = 64  # that are followed from a root
_DEPTH = 16  # nodes of a term
_ELEMENTS = 1 << 16  # of a target that is read
_MOVES = frozenset(
    (
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Clone",
        "ToCopy",
        "Alias",
        "Select",
        "Slice",
    )
)
_LINEAR = frozenset(("Addmm", "Mm", "Convolution"))
_ERRORS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss"))
_PICKS = frozenset(("Max", "Amax", "Gather", "Index", "IndexSelect", "Where"))  # of answers for the actions
#: Between a loss and its last softmax or sigmoid. A power is the square of an error, say.
_PASSES = _PICKS | {"Log", "Neg", "Rsub", "Mul", "Add", "Sub", "Clamp", "ClampMin", "Sum", "Mean"}
_SQUASHES = frozenset(("Sigmoid", "Softmax"))
_DISCOUNT = (0.5, 1.0)  # bounds of a factor that discounts what comes later


class LossFormula(WaitingEvents):
    """Follows what is wrong with the formula of all roots of a training, until one of them is without it."""

    def __init__(self) -> None:
        super().__init__()
        self._fault: str | None = None  # None before the first root

    def phase_begins(self) -> None:
        """Called when optimizers have come or parameters are others: a second training may have another loss."""
        if self._fault == "":
            self._fault = None

    def root(self, root: Any) -> None:
        """Called with the root of a backward pass, of which saved tensors can be read."""
        if self._fault == "":
            return
        fault = fault_of(root.grad_fn)
        if fault == self._fault:
            return
        if self._fault is not None:
            fault = ""  # roots of two kinds: an adversary, or tasks that take turns
        if fault or self._fault is not None:
            self.waiting.append({"kind": "loss_formula", "fault": fault})
        self._fault = fault


@dataclass(slots=True)
class _Term:
    """A part of a loss that is no sum, mean or product with a constant."""

    node: Any
    sign: float
    averaged: bool  # it is a mean or a sum
    shifted: bool  # what is averaged is a difference to something without a gradient
    weighted: bool = False  # by a number that the script may have worked out: a gain of either sign


@dataclass(slots=True)
class _Choice:
    """A probability, or its logarithm, of targets."""

    axis: int | None = None  # along which targets choose
    repeated: bool = False  # two rows of a matrix choose the same
    hot: Array | None = None  # the targets, as rows of zeros and a one
    normalised: int | None = None  # axis of the softmax
    square: bool = False  # as many classes as rows: either axis may be that of the classes
    logarithm: bool = False
    binary: bool = False  # multiplied by zeros and ones
    complement: bool = False  # one minus the probability
    sigmoid: Any = None  # node that made it


def fault_of(node: Any) -> str:
    """Returns what is wrong with the formula behind a root's node, as docs/spec/evidence.md lists it; "" if nothing
    is known.
    """
    try:
        terms = _terms(node)
        if not terms:
            return ""
        if _divergence_grows(terms):
            return "divergence_maximised"
        if gains_move(term.node for term in terms):
            return "moving_gain"
        if all(_target_moves(term.node) for term in terms):
            return "moving_target"
        if all(_squashed_twice(term.node) for term in terms):
            return "squashed_twice"
        if any(_mixes_other_axis(term.node) for term in terms):
            return "softmax_axis"
        if fault := _of_errors(terms):
            return fault
        choices = [_choice(term.node) for term in terms]
        for choice in choices:
            if choice is not None and choice.logarithm and _other_axis(choice):
                return "softmax_axis"
        if len(terms) == 1 and (fault := _of_one(terms[0], choices[0])):
            return fault
        return _of_all(terms, choices)
    except (RuntimeError, AttributeError, IndexError):  # changed in place since, or saved under another name
        return ""


def _of_all(terms: list[_Term], choices: list[_Choice | None]) -> str:
    """Returns what is wrong with a sum of logarithms of probabilities."""
    known = [choice for choice in choices if choice is not None and choice.logarithm]
    doubtful = any(term.sign < 0 or term.weighted or term.shifted for term in terms)
    if len(known) < len(terms) or doubtful:
        return ""
    classes = all(c.axis is not None and c.axis == c.normalised and not c.complement for c in known)
    halves = len(known) == 2 and known[0].sigmoid is not None and known[0].sigmoid is known[1].sigmoid
    both = halves and all(c.binary for c in known) and known[0].complement != known[1].complement
    return "likelihood_minimised" if classes or both else ""


def _of_one(term: _Term, choice: _Choice | None) -> str:
    name = operation_of(term.node)
    if choice is not None:
        alone = choice.logarithm and choice.binary and not choice.complement
        if alone and term.sign < 0 and term.averaged and choice.sigmoid is not None:
            return (
                "half_of_bce" if operation_of(_past(choice.sigmoid.next_functions[0][0])) in _LINEAR else ""
            )
        return ""
    if term.averaged and term.shifted and name in _LINEAR:
        return "mean_error"
    if is_square(term.node) and not term.averaged:
        inner = _terms(term.node.next_functions[0][0])
        if (
            len(inner) == 1
            and inner[0].averaged
            and inner[0].shifted
            and operation_of(inner[0].node) in _LINEAR
        ):
            return "squared_mean"
    if name == "Mul":
        return _of_focal(term)
    if name == "Div" and term.sign > 0 and _is_overlap(term.node):
        return "overlap_minimised"
    return ""


def _divergence_grows(terms: list[_Term]) -> bool:
    """Returns whether a loss holds 1 + log v - m**2 - v with a plus: the divergence of a normal distribution from
    N(0, 1) with the wrong sign. `v` is written as the exponential of its logarithm, or as the square of a deviation.
    """
    squares = [term for term in terms if term.sign < 0 and is_square(term.node)]
    cores = [_core(term.node.next_functions[0][0]) for term in squares]
    rising = [_core(term.node) for term in terms if term.sign > 0 and not term.shifted]
    for term in terms:
        name, following = operation_of(term.node), term.node.next_functions
        if (
            name == "Exp"
            and term.sign < 0
            and squares
            and any(_core(following[0][0]) is one for one in rising)
        ):
            return True
        if name == "Log" and term.sign > 0 and len(squares) > 1:
            inside = _past(following[0][0])
            deviation = _core(inside.next_functions[0][0] if is_square(inside) else inside)
            if any(deviation is core for core in cores):
                return True
    return False


def _target_moves(node: Any) -> bool:
    """Returns whether the target of a loss of errors is a number plus a discount times an answer of the linear layer
    that predicts, with a gradient: that of a value that is learnt from its own estimate. A gradient of another layer,
    as of a target network, may be one that no optimizer uses.
    """
    if operation_of(node) not in _ERRORS or len(node.next_functions) < 2:
        return False
    prediction, target = (child for child, _ in node.next_functions[:2])
    target = _past(target)
    if prediction is None or operation_of(target) not in ("Add", "Sub"):
        return False
    children = [child for child, _ in target.next_functions]
    moving = [child for child in children if child is not None]
    if len(children) != 2 or len(moving) != 1:
        return False
    answer, discounted = _answer(moving[0])
    if not discounted:
        return False
    weights = _leaves(answer)
    return any(one is weight for one in _leaves(_answer(prediction)[0]) for weight in weights)


def _squashed_twice(node: Any) -> bool:
    """Returns whether a term is made of a sigmoid or softmax (or its logarithm) of what a sigmoid or softmax gave, with
    nothing between. On the way only one of what an operation combines may have a gradient. Of classes, one must be
    chosen: shares of a teacher, or even ones, are met by what is near to even.
    """
    chosen = False
    for _ in range(_DEPTH):
        node = _past(node)
        inner = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        name = operation_of(node)
        if name in _SQUASHES or name in ("LogSoftmax", "LogSigmoid"):
            one = chosen or name in ("Sigmoid", "LogSigmoid")
            return one and len(inner) == 1 and operation_of(_past(inner[0])) in _SQUASHES
        if len(inner) != 1 or name not in _PASSES:
            return False
        if name == "Mul" and constant_factor(node, False) is None:
            target, _ = _constant_of(node)
            if target is None or not _is_binary(target):
                return False
            chosen |= _is_hot(target)
        chosen |= name in ("Gather", "Index")
        node = inner[0]
    return False


def _mixes_other_axis(node: Any) -> bool:
    """Returns whether a mixture is summed along one axis, and the logarithms of its weights are normalised along
    another: logsumexp(log_weights + log_densities). As many parts as rows leave it open which is which. The densities
    must be those of deviations: of categories, the log-softmax may be the densities.
    """
    if operation_of(node) != "Logsumexp" or len(node._saved_dim) != 1:
        return False
    terms = _terms(node.next_functions[0][0])
    if not any(_is_deviation(term) for term in terms):
        return False
    parts = [term for term in terms if not term.averaged and term.sign > 0]
    weights = [term.node for term in parts if operation_of(term.node) == "LogSoftmax"]
    if len(parts) < 2 or len(weights) != 1:
        return False
    shape = node._saved_self.shape
    normalised = weights[0]._saved_result.dim()
    if len(shape) != normalised or len(set(shape)) < len(shape):
        return False
    return _axis(node._saved_dim[0], len(shape)) != _axis(weights[0]._saved_dim, normalised)


def _is_deviation(term: _Term) -> bool:
    """Returns whether a term is minus a square, times or over anything: that of the logarithm of a normal density."""
    node, sign = term.node, term.sign
    for _ in range(_DEPTH):
        node = _past(node)
        if node is None or is_square(node):
            return node is not None and sign < 0
        name = operation_of(node)
        inner = [child for child, _ in node.next_functions if child is not None]
        if not inner or name not in ("Neg", "Mul", "Div", "Sum", "Mean"):
            return False
        sign = -sign if name == "Neg" else sign
        node = inner[0]
    return False


def _answer(node: Any) -> tuple[Any, bool]:
    """Returns what a value was picked of, and whether it was multiplied by a discount."""
    node, discounted = _past(node), False
    for _ in range(_DEPTH):
        name = operation_of(node)
        inner = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        if name == "Mul" and len(inner) == 1:
            discounted |= _discounts(node)
        elif name not in _PICKS or len(inner) != 1:
            break
        node = _past(inner[0])
    return node, discounted


def _leaves(node: Any) -> list[Any]:
    """Returns the parameters that a linear layer's node multiplies by and adds; nothing of another node."""
    if operation_of(node) not in _LINEAR:
        return []
    inner = [child for child, _ in node.next_functions if child is not None]
    inner = [child.next_functions[0][0] if operation_of(child) == "T" else child for child in inner]
    return [child.variable for child in inner if hasattr(child, "variable")]


def _discounts(node: Any) -> bool:
    """Returns whether a product's constant is a discount: one number below 1, or that and zeros where episodes end."""
    factor = constant_factor(node, False)
    if factor is None:
        values, _ = _constant_of(node)
        kept = [] if values is None else [float(value) for value in np.unique(values[values != 0])]
        factor = kept[0] if len(kept) == 1 else 0.0
    return _DISCOUNT[0] <= factor < _DISCOUNT[1]


def _of_errors(terms: list[_Term]) -> str:
    """Returns what is wrong with means of errors that are weighted by their sign, or of margins."""
    faults = {_of_branches(term) or _of_margin(term) for term in terms if term.averaged}
    return faults.pop() if len(faults) == 1 and all(term.averaged for term in terms) else ""


def _of_branches(term: _Term) -> str:
    """Returns what is wrong with a quantile loss: its branches must rise on either side of an error of 0."""
    name = operation_of(term.node)
    children = [child for child, _ in term.node.next_functions]
    if name == "Mul" and term.sign > 0:
        weights, error = _constant_of(term.node)
        slope = None if weights is None or weights.size < 2 or not (weights > 0).all() else _slope(error)
        return "mean_error" if slope is not None else ""
    if name not in ("Maximum", "Minimum", "Where") or len(children) != 2:
        return ""
    one, other = (_slope(child) for child in children)
    if one is None or other is None or one[1] is not other[1]:
        return ""
    if one[0] * other[0] > 0:
        return "mean_error"
    return "errors_maximised" if name == ("Minimum" if term.sign > 0 else "Maximum") else ""


def _slope(node: Any) -> tuple[float, Any] | None:
    """Returns how fast an error changes with the output of a linear layer, and the layer's node; None for anything
    but a multiple of output minus target.
    """
    terms = _terms(node)
    if len(terms) != 1 or operation_of(terms[0].node) not in _LINEAR:
        return None
    slope, shifted, node = 1.0, False, _past(node)
    for _ in range(_DEPTH):
        name, following = operation_of(node), [child for child, _ in node.next_functions]
        if name in ("Mul", "Div"):
            slope *= constant_factor(node, name == "Div") or 0.0
        elif name in ("Neg", "Rsub") or (name == "Sub" and following[0] is None):
            slope = -slope
        elif name not in ("Add", "Sub"):
            break
        shifted |= name == "Sub" and None in following
        node = _past(next((child for child in following if child is not None), None))
    return (slope, node) if shifted and slope and node is _past(terms[0].node) else None


def _of_margin(term: _Term) -> str:
    """Returns whether a hinge or logistic loss multiplies outputs by targets of 0 and 1, where -1 and 1 are due."""
    if term.sign < 0 or operation_of(term.node) not in ("Relu", "ClampMin", "Clamp", "Softplus", "Maximum"):
        return ""
    inside = next((child for child, _ in term.node.next_functions if child is not None), None)
    products = [part for part in _terms(inside) if operation_of(part.node) == "Mul"]
    if len(products) != 1:
        return ""
    target, output = _constant_of(products[0].node)
    if (
        target is None
        or not _is_binary(-products[0].sign * target)
        or operation_of(_past(output)) not in _LINEAR
    ):
        return ""
    return "margin_of_zeros"


def _of_focal(term: _Term) -> str:
    """Returns what is wrong with a focal loss: the logarithm of a probability times a power of its rest."""
    children = [child for child, _ in term.node.next_functions]
    if len(children) != 2 or None in children:
        return ""
    for power, other in (children, children[::-1]):
        choice = _choice(other)
        if choice is None or not choice.logarithm or choice.axis is None or choice.axis != choice.normalised:
            continue
        if operation_of(power) != "Pow":
            continue
        weight = _choice(power.next_functions[0][0])
        if weight is None or weight.logarithm or weight.axis != choice.axis:
            continue
        if weight.complement:
            return "likelihood_minimised" if term.sign > 0 else ""
        return "focal_upside_down" if term.sign < 0 else ""
    return ""


def _is_overlap(node: Any) -> bool:
    """Returns whether a quotient is an overlap, as Dice's: what two sets share, over the sum of their sizes."""
    top, bottom = (child for child, _ in node.next_functions)
    if top is None or bottom is None:
        return False
    shared = [term for term in _terms(top) if term.averaged and operation_of(term.node) == "Mul"]
    if len(shared) != 1:
        return False
    target, inside = _constant_of(shared[0].node)
    inside = _past(inside)
    whole = [term for term in _terms(bottom) if term.node is inside and term.averaged and term.sign > 0]
    if target is None or len(whole) != 1 or operation_of(inside) != "Sigmoid" or not _is_binary(target):
        return False
    shares, size = array_of(inside._saved_result), array_of(node._saved_other)
    if shares is None or size is None or shares.size != target.size:
        return False
    shares = shares.reshape(target.shape)
    both, sizes = float((shares * target).sum()), float(shares.sum()) + float(target.sum())
    small = 1e-3 * sizes
    return float(size.sum()) >= sizes - small or abs(float(size.sum()) - sizes + both) <= small


# Graph -------------------------------------------------------------------------------------------------------------


def _past(node: Any) -> Any:
    """Returns a node, or the first one behind it that does more than move values."""
    for _ in range(_DEPTH):
        if operation_of(node) not in _MOVES:
            break
        node = node.next_functions[0][0]
    return node


def _core(node: Any) -> Any:
    """Returns a node without moves, and without constant factors above 0."""
    for _ in range(_DEPTH):
        node = _past(node)
        name = operation_of(node)
        if name not in ("Mul", "Div") or not (constant_factor(node, name == "Div") or 0.0) > 0.0:
            break
        node = node.next_functions[0][0]
    return node


def _parts_of(term: _Term) -> Iterator[_Term] | None:
    """Returns what a sum, mean or product with a constant is made of; None for another operation."""
    name, following = operation_of(term.node), [child for child, _ in term.node.next_functions]
    if name in _MOVES:
        return iter([replace(term, node=following[0])])
    if name in ("Mean", "Sum"):
        return iter([replace(term, node=following[0], averaged=True)])
    if name in ("Neg", "Rsub"):
        return iter([replace(term, node=following[0], sign=-term.sign)])
    if name in ("Add", "Sub"):
        shifted = term.shifted or (name == "Sub" and None in following and term.averaged)
        signs = (term.sign, -term.sign if name == "Sub" else term.sign)
        pairs = zip(following, signs, strict=False)
        return (replace(term, node=n, sign=sign, shifted=shifted) for n, sign in pairs if n is not None)
    if name in ("Mul", "Div"):
        factor = constant_factor(term.node, name == "Div")
        if factor is not None and following[0] is not None:
            sign, weighted = term.sign if factor > 0 else -term.sign, term.weighted or name == "Mul"
            return iter([replace(term, node=following[0], sign=sign, weighted=weighted)])
    return None


def _terms(node: Any) -> list[_Term]:
    """Returns what a node sums up; nothing if that is too much."""
    found: list[_Term] = []
    queue = [] if node is None else [_Term(node, 1.0, False, False)]
    for count, term in enumerate(queue):  # grows during the loop
        if count >= _NODES:
            return []
        parts = _parts_of(term)
        if parts is None:
            found.append(term)
        else:
            queue.extend(parts)
    return found


def _choice(node: Any) -> _Choice | None:
    """Follows a term to the softmax or sigmoid behind it; None if it has none, or an operation lies between that
    has no place in a likelihood.
    """
    choice = _Choice()
    for _ in range(_DEPTH):
        name = operation_of(node)
        following = [child for child, _ in node.next_functions] if node is not None else []
        if name in ("Softmax", "LogSoftmax"):
            choice.logarithm |= name == "LogSoftmax"
            result = node._saved_result
            choice.normalised = _axis(node._saved_dim, result.dim())
            choice.square |= result.dim() == 2 and result.shape[0] == result.shape[1]
            return choice
        if name == "Sigmoid":
            choice.sigmoid = node
            return choice
        if name == "Div":
            return choice if _normalised(node, choice) else None
        if name in ("Log", "Log2", "Log10"):
            if choice.logarithm:
                return None
            choice.logarithm = True
        elif name in ("Gather", "Index") or name == "Mul":
            if choice.axis is not None or choice.binary or not _chooses(node, name, choice):
                return None
            if name == "Mul":
                node = next((child for child in following if child is not None), None)
                continue
        elif name == "Rsub" or (name == "Sub" and following[0] is None):
            choice.complement = not choice.complement
            node = next((child for child in following if child is not None), None)
            continue
        elif name in _MOVES:
            if choice.axis is not None and name not in ("Clone", "ToCopy", "Alias"):
                return None  # axes have other numbers
        elif not (name in ("Clamp", "ClampMin") or (name == "Add" and None in following)):
            return None
        node = following[0] if following else None
    return None


def _axis(dim: int, count: int) -> int:
    dim -= 1 << 64 if dim >> 63 and dim > 0 else 0
    return dim + count if dim < 0 else dim


def _chooses(node: Any, name: str, choice: _Choice) -> bool:
    """Notes along which axis an operation takes the entries of targets."""
    if name == "Gather":
        index = node._saved_index
        axis = _axis(node._saved_dim, index.dim())
        places = _read(index)
        if places is None or index.shape[axis] != 1 or _counts(places.reshape(-1)):
            return False
        choice.axis = axis
        choice.repeated = places.ndim == 2 and _repeats(places)
        return True
    if name == "Index":
        indices = [_read(index) for index in node._saved_indices]
        if len(indices) != 2 or any(index is None or index.ndim != 1 for index in indices):
            return False
        rows, classes = indices
        if rows is None or not _counts(rows) or classes is None or _counts(classes):
            return False
        choice.axis, choice.repeated = 1, _repeats(classes)
        return True
    target, _ = _constant_of(node)
    if target is None or not _is_binary(target):
        return False
    if _is_hot(target):
        choice.axis, choice.hot = target.ndim - 1, target
    else:
        choice.binary = True
    return True


def _constant_of(node: Any) -> tuple[Array | None, Any]:
    """Returns the factor of a product that has no gradient, and the node of the other."""
    following = [child for child, _ in node.next_functions]
    if len(following) != 2 or (following[0] is None) == (following[1] is None):
        return None, None
    tensor = node._saved_other if following[1] is None else node._saved_self
    return _read(tensor), following[0] or following[1]


def _read(tensor: Any) -> Array | None:
    """Returns the memory of targets as an array; None if it cannot be read, or there is too much of it."""
    if not isinstance(tensor, torch.Tensor) or tensor.numel() > _ELEMENTS:
        return None
    kind = INTEGERS.get(tensor.dtype)
    if kind is None:
        return array_of(tensor)
    return array_view(tensor, kind) if is_readable(tensor) and address_of(tensor) else None


def _is_binary(values: Array) -> bool:
    """Whether the values are zeros and ones, some of each."""
    ones = int(np.count_nonzero(values == 1))
    return 0 < ones < values.size and ones + int(np.count_nonzero(values == 0)) == values.size


def _is_hot(values: Array) -> bool:
    """Whether each row of zeros and ones has a single one."""
    return values.ndim >= 2 and values.shape[-1] > 1 and bool((values.sum(axis=-1) == 1).all())


def _counts(values: Array) -> bool:
    """Whether the values are 0, 1, 2, …: each row and its own number."""
    return bool(values.size > 1 and (values == np.arange(values.size)).all())


def _repeats(values: Array) -> bool:
    return bool(np.unique(values).size < values.size)


def _normalised(node: Any, choice: _Choice) -> bool:
    """Notes the axis of a softmax that is written as a quotient of exponentials and their sum."""
    top, total = (child for child, _ in node.next_functions)
    if operation_of(top) != "Exp" or operation_of(total) != "Sum":
        return False
    summed = total.next_functions[0][0]
    if summed is not top and (operation_of(summed) != "Exp" or summed.next_functions != top.next_functions):
        return False
    sizes, dims = total._saved_self_sym_sizes, total._saved_dim
    if len(dims) != 1:
        return False
    choice.normalised = _axis(dims[0], len(sizes))
    choice.square = len(sizes) == 2 and sizes[0] == sizes[1]
    return True


def _other_axis(choice: _Choice) -> bool:
    """Whether targets choose along another axis than that over which the probabilities sum to 1, and two of them
    choose the same: of pairs, each may choose but one.
    """
    axis = choice.normalised
    if choice.axis is None or axis is None or choice.axis == axis or choice.square:
        return False
    if choice.hot is None:
        return choice.repeated
    return axis < choice.hot.ndim and bool((choice.hot.sum(axis=axis) > 1).any())
