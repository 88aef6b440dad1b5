"""Reads the formula of a loss that a script writes itself in the graph of a backward pass, and finds what cannot be
meant: a softmax over another axis than that of the classes, a missing minus, half of a formula.

A bounded walk before the graph is freed. Tensors are read as memory; nothing is computed with torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of
from luff.torch.evidence._actor_critic import gains_move
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._free_scale import has_free_scale
from luff.torch.evidence._loss_graph import constant_factor, is_square
from luff.torch.evidence._loss_terms import (
    DEPTH,
    MOVES,
    Choice,
    Term,
    axis_of,
    choice_of,
    constant_of,
    core,
    is_binary,
    is_hot,
    other_axis,
    past,
    read,
    terms_of,
)
from luff.torch.evidence._weights_of_means import weights_a_mean

__all__ = ["UNDECIDED", "LossFormula", "fault_of"]

#: Of a root that shows neither a fault nor that there is none.
UNDECIDED = "undecided"

_LINEAR = frozenset(("Addmm", "Mm", "Convolution"))
_ERRORS = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss"))
_PICKS = frozenset(("Max", "Amax", "Gather", "Index", "IndexSelect", "Where"))  # of answers for the actions
#: Between a loss and its last softmax or sigmoid. A power is the square of an error, say.
_PASSES = _PICKS | {"Log", "Neg", "Rsub", "Mul", "Add", "Sub", "Clamp", "ClampMin", "Sum", "Mean"}
_SQUASHES = frozenset(("Sigmoid", "Softmax"))
_AROUND_A_NORM = MOVES | {"Expand", "Clamp", "ClampMin", "Add"}  # between a quotient and a vector's length
_RESHAPES = MOVES - {"Select", "Slice"}
_UNIT = 1e-2  # of the square of a length of 1, in bfloat16 too
_NEAR = 0.5  # cosine: of chance, embeddings and their targets have one near 0
#: What a second training may mean, of a model that was trained before: an attack, or rows that are to be forgotten.
_ON_PURPOSE = frozenset(
    (
        "likelihood_minimised",
        "half_of_bce",
        "mean_error",
        "focal_upside_down",
        "overlap_minimised",
        "similarity_minimised",
        "divergence_maximised",
        "errors_maximised",
    )
)
_DISCOUNT = (0.5, 1.0)  # bounds of a factor that discounts what comes later


class LossFormula(WaitingEvents):
    """Follows what is wrong with the formula of all roots of a training, until one of them is without it."""

    def __init__(self) -> None:
        super().__init__()
        self._fault: str | None = None  # None before the first root
        self._again = False  # another training came before

    def phase_begins(self) -> None:
        """Called when optimizers have come or parameters are others: a second training may have another loss."""
        if self._fault == "":
            self._fault, self._again = None, True

    def root(self, root: Any) -> None:
        """Called with the root of a backward pass, of which saved tensors can be read."""
        if self._fault == "":
            return
        fault = fault_of(root.grad_fn)
        if fault == UNDECIDED:
            return
        if self._again and fault in _ON_PURPOSE:
            fault = ""
        if fault == self._fault:
            return
        if self._fault is not None:
            fault = ""  # roots of two kinds: an adversary, or tasks that take turns
        if fault or self._fault is not None:
            self.waiting.append({"kind": "loss_formula", "fault": fault})
        self._fault = fault


def fault_of(node: Any) -> str:
    """Returns what is wrong with the formula behind a root's node, as docs/spec/evidence.md lists it; "" if nothing
    is known; `UNDECIDED` where another batch may tell.
    """
    try:
        if (without_effect := weights_a_mean(node)) is not False:
            return "weights_without_effect" if without_effect else UNDECIDED
        terms = terms_of(node)
        if not terms:
            return ""
        if _divergence_grows(terms):
            return "divergence_maximised"
        if has_free_scale(terms):
            return "scale_without_cost"
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
        if any(_of_scores(term.node) for term in terms):
            return "overlap_of_scores"
        if _overlap_falls(terms):
            return "overlap_minimised"
        if all(_is_similarity(term) for term in terms):
            return "similarity_minimised"
        choices = [choice_of(term.node) for term in terms]
        for choice in choices:
            if choice is not None and choice.logarithm and other_axis(choice):
                return "softmax_axis"
        if len(terms) == 1 and (fault := _of_one(terms[0], choices[0])):
            return fault
        return _of_all(terms, choices)
    except (RuntimeError, AttributeError, IndexError):  # changed in place since, or saved under another name
        return ""


def _of_all(terms: list[Term], choices: list[Choice | None]) -> str:
    """Returns what is wrong with a sum of logarithms of probabilities."""
    known = [choice for choice in choices if choice is not None and choice.logarithm]
    doubtful = any(term.sign < 0 or term.weighted or term.shifted for term in terms)
    if len(known) < len(terms) or doubtful:
        return ""
    classes = all(c.axis is not None and c.axis == c.normalised and not c.complement for c in known)
    halves = len(known) == 2 and known[0].sigmoid is not None and known[0].sigmoid is known[1].sigmoid
    both = halves and all(c.binary for c in known) and known[0].complement != known[1].complement
    return "likelihood_minimised" if classes or both else ""


def _of_one(term: Term, choice: Choice | None) -> str:
    name = operation_of(term.node)
    if choice is not None:
        alone = choice.logarithm and choice.binary and not choice.complement
        if alone and term.sign < 0 and term.averaged and choice.sigmoid is not None:
            return "half_of_bce" if operation_of(past(choice.sigmoid.next_functions[0][0])) in _LINEAR else ""
        return ""
    if term.averaged and term.shifted and name in _LINEAR:
        return "mean_error"
    if is_square(term.node) and not term.averaged:
        inner = terms_of(term.node.next_functions[0][0])
        if (
            len(inner) == 1
            and inner[0].averaged
            and inner[0].shifted
            and operation_of(inner[0].node) in _LINEAR
        ):
            return "squared_mean"
    return _of_focal(term) if name == "Mul" else ""


def _divergence_grows(terms: list[Term]) -> bool:
    """Returns whether a loss holds 1 + log v - m**2 - v with a plus: the divergence of a normal distribution from
    N(0, 1) with the wrong sign. `v` is written as the exponential of its logarithm, or as the square of a deviation.
    """
    squares = [term for term in terms if term.sign < 0 and is_square(term.node)]
    cores = [core(term.node.next_functions[0][0]) for term in squares]
    rising = [core(term.node) for term in terms if term.sign > 0 and not term.shifted]
    for term in terms:
        name, following = operation_of(term.node), term.node.next_functions
        if (
            name == "Exp"
            and term.sign < 0
            and squares
            and any(core(following[0][0]) is one for one in rising)
        ):
            return True
        if name == "Log" and term.sign > 0 and len(squares) > 1:
            inside = past(following[0][0])
            deviation = core(inside.next_functions[0][0] if is_square(inside) else inside)
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
    target = past(target)
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
    for _ in range(DEPTH):
        node = past(node)
        inner = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        name = operation_of(node)
        if name in _SQUASHES or name in ("LogSoftmax", "LogSigmoid"):
            one = chosen or name in ("Sigmoid", "LogSigmoid")
            return one and len(inner) == 1 and operation_of(past(inner[0])) in _SQUASHES
        if len(inner) != 1 or name not in _PASSES:
            return False
        if name == "Mul" and constant_factor(node, False) is None:
            target, _ = constant_of(node)
            if target is None or not is_binary(target):
                return False
            chosen |= is_hot(target)
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
    terms = terms_of(node.next_functions[0][0])
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
    return axis_of(node._saved_dim[0], len(shape)) != axis_of(weights[0]._saved_dim, normalised)


def _is_deviation(term: Term) -> bool:
    """Returns whether a term is minus a square, times or over anything: that of the logarithm of a normal density."""
    node, sign = term.node, term.sign
    for _ in range(DEPTH):
        node = past(node)
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
    node, discounted = past(node), False
    for _ in range(DEPTH):
        name = operation_of(node)
        inner = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        if name == "Mul" and len(inner) == 1:
            discounted |= _discounts(node)
        elif name not in _PICKS or len(inner) != 1:
            break
        node = past(inner[0])
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
        values, _ = constant_of(node)
        kept = [] if values is None else [float(value) for value in np.unique(values[values != 0])]
        factor = kept[0] if len(kept) == 1 else 0.0
    return _DISCOUNT[0] <= factor < _DISCOUNT[1]


def _of_errors(terms: list[Term]) -> str:
    """Returns what is wrong with means of errors that are weighted by their sign, or of margins."""
    faults = {_of_branches(term) or _of_margin(term) for term in terms if term.averaged}
    return faults.pop() if len(faults) == 1 and all(term.averaged for term in terms) else ""


def _of_branches(term: Term) -> str:
    """Returns what is wrong with a quantile loss: its branches must rise on either side of an error of 0."""
    name = operation_of(term.node)
    children = [child for child, _ in term.node.next_functions]
    if name == "Mul" and term.sign > 0:
        weights, error = constant_of(term.node)
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
    terms = terms_of(node)
    if len(terms) != 1 or operation_of(terms[0].node) not in _LINEAR:
        return None
    slope, shifted, node = 1.0, False, past(node)
    for _ in range(DEPTH):
        name, following = operation_of(node), [child for child, _ in node.next_functions]
        if name in ("Mul", "Div"):
            slope *= constant_factor(node, name == "Div") or 0.0
        elif name in ("Neg", "Rsub") or (name == "Sub" and following[0] is None):
            slope = -slope
        elif name not in ("Add", "Sub"):
            break
        shifted |= name == "Sub" and None in following
        node = past(next((child for child in following if child is not None), None))
    return (slope, node) if shifted and slope and node is past(terms[0].node) else None


def _of_margin(term: Term) -> str:
    """Returns whether a hinge or logistic loss multiplies outputs by targets of 0 and 1, where -1 and 1 are due."""
    if term.sign < 0 or operation_of(term.node) not in ("Relu", "ClampMin", "Clamp", "Softplus", "Maximum"):
        return ""
    inside = next((child for child, _ in term.node.next_functions if child is not None), None)
    products = [part for part in terms_of(inside) if operation_of(part.node) == "Mul"]
    if len(products) != 1:
        return ""
    target, output = constant_of(products[0].node)
    if (
        target is None
        or not is_binary(-products[0].sign * target)
        or operation_of(past(output)) not in _LINEAR
    ):
        return ""
    return "margin_of_zeros"


def _of_focal(term: Term) -> str:
    """Returns what is wrong with a focal loss: the logarithm of a probability times a power of its rest."""
    children = [child for child, _ in term.node.next_functions]
    if len(children) != 2 or None in children:
        return ""
    for power, other in (children, children[::-1]):
        choice = choice_of(other)
        if choice is None or not choice.logarithm or choice.axis is None or choice.axis != choice.normalised:
            continue
        if operation_of(power) != "Pow":
            continue
        weight = choice_of(power.next_functions[0][0])
        if weight is None or weight.logarithm or weight.axis != choice.axis:
            continue
        if weight.complement:
            return "likelihood_minimised" if term.sign > 0 else ""
        return "focal_upside_down" if term.sign < 0 else ""
    return ""


def _overlap_falls(terms: list[Term]) -> bool:
    """Returns whether an overlap is made small: alone, or beside a loss that draws the same scores to the same
    targets. Other scores, as of a background or of a second model, may have to keep off them.
    """
    added = [term.node for term in terms if term.sign > 0]
    overlaps = [overlap for node in added if (overlap := _overlap(node)) is not None]
    if len(overlaps) == len(terms):
        return True
    return any(_meets(other, *overlap) for overlap in overlaps for other in added)


def _quotient(node: Any) -> tuple[Array, Any] | None:
    """Returns the targets of a quotient that is written as an overlap, as Dice's: what two sets share, over the sum of
    their sizes; and the node of the shares of the other set.
    """
    if operation_of(node) != "Div":
        return None
    top, bottom = (child for child, _ in node.next_functions)
    if top is None or bottom is None:
        return None
    shared = [term for term in terms_of(top) if term.averaged and operation_of(term.node) == "Mul"]
    if len(shared) != 1:
        return None
    target, inside = constant_of(shared[0].node)
    inside = past(inside)
    whole = [term for term in terms_of(bottom) if term.node is inside and term.averaged and term.sign > 0]
    return (target, inside) if target is not None and len(whole) == 1 and is_binary(target) else None


def _overlap(node: Any) -> tuple[Array, Any] | None:
    """Returns the targets of an overlap of probabilities, and the node of their sigmoid or softmax."""
    found = _quotient(node)
    if found is None or operation_of(found[1]) not in _SQUASHES:
        return None
    target, inside = found
    shares, size = array_of(inside._saved_result), array_of(node._saved_other)
    if shares is None or size is None or shares.size != target.size:
        return None
    shares = shares.reshape(target.shape)
    both, sizes = float((shares * target).sum()), float(shares.sum()) + float(target.sum())
    small = 1e-3 * sizes
    near = float(size.sum()) >= sizes - small or abs(float(size.sum()) - sizes + both) <= small
    return (target, inside) if near else None


def _of_scores(node: Any) -> bool:
    """Returns whether an overlap takes the scores of a linear layer for probabilities."""
    found = _quotient(node)
    return found is not None and operation_of(found[1]) in _LINEAR


def _meets(node: Any, target: Array, squashed: Any) -> bool:
    """Returns whether a cross entropy of torch has these zeros and ones for targets, or the classes that they choose
    along axis 1, and gets the scores behind a node of a sigmoid or softmax.
    """
    name, squash = operation_of(node), operation_of(squashed)
    if name == "BinaryCrossEntropy" and squash == "Sigmoid":
        sigmoid, _ = _source(node)
        same = operation_of(sigmoid) == "Sigmoid" and _source(sigmoid) == _source(squashed)
    elif name == "BinaryCrossEntropyWithLogits" and squash == "Sigmoid":
        same = _source(node) == _source(squashed)
    elif name in ("NllLoss", "NllLoss2d", "NllLoss2D") and squash == "Softmax":
        logarithm, _ = _source(node)
        same = operation_of(logarithm) == "LogSoftmax" and _source(logarithm) == _source(squashed)
    else:
        return False
    other = read(node._saved_target) if same else None
    if other is None:
        return False
    if squash == "Sigmoid":
        return other.size == target.size and _agree(other, target)
    if target.ndim < 2 or other.size * target.shape[1] != target.size:
        return False
    return bool((target.sum(axis=1) == 1).all()) and _agree(other, target.argmax(axis=1))


def _source(node: Any) -> tuple[Any, int]:
    """Returns the node whose result is what a node gets, in whatever shape, and which of its results it is."""
    source: tuple[Any, int] = node.next_functions[0]
    for _ in range(DEPTH):
        if operation_of(source[0]) not in _RESHAPES:
            break
        source = source[0].next_functions[0]
    return source


def _agree(one: Array, other: Array) -> bool:
    return bool((one.reshape(-1) == other.reshape(-1)).all())


def _is_similarity(term: Term) -> bool:
    """Returns whether a term is the mean, with a plus, of cosines between what has a gradient and vectors of length 1
    that have none: of embeddings and their targets. Signs and axes are of length 1, too, and are no embeddings.
    Embeddings that are near to their targets already are pushed away on purpose: an attack, or what is to be forgotten.
    """
    if not term.averaged or term.sign < 0 or operation_of(term.node) != "Mul":
        return False
    target, embedded = constant_of(term.node)
    embedded = past(embedded)
    if target is None or target.ndim < 2 or operation_of(embedded) != "Div":
        return False
    vector, length = (child for child, _ in embedded.next_functions)
    for _ in range(DEPTH):
        if operation_of(length) not in _AROUND_A_NORM:
            break
        length = length.next_functions[0][0]
    if operation_of(length) not in ("LinalgVectorNorm", "Norm") or length.next_functions[0][0] is not vector:
        return False
    return _are_vectors(target) and _cosine(target, embedded) < _NEAR


def _are_vectors(values: Array) -> bool:
    """Returns whether all vectors along one axis but the first are of length 1, and have two numbers at least."""
    for axis in range(1, values.ndim):
        lengths = np.square(values, dtype=np.float64).sum(axis=axis)
        if bool((abs(lengths - 1) < _UNIT).all()):
            return bool((np.count_nonzero(values, axis=axis) > 1).all())
    return False


def _cosine(target: Array, embedded: Any) -> float:
    """Returns the mean cosine between targets and what a quotient's node gave; 1 if it cannot be read."""
    vectors, lengths = read(embedded._saved_self), read(embedded._saved_other)
    if vectors is None or lengths is None or vectors.shape != target.shape:
        return 1.0
    with np.errstate(all="ignore"):
        cosines = target * (vectors / lengths)
        return float(cosines.sum() / np.square(target, dtype=np.float64).sum())
