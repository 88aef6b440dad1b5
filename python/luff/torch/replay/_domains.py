"""Explains why an operation has no finite result: compares its arguments, read as memory, with its domain.

Used in the training process on what the graph has saved, and in a replay. Nothing here computes with torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from luff.torch.capture._memory import Array

__all__ = ["is_bad", "operator_of", "reason_of", "saved_by"]

_NUMBERED = re.compile(r"Backward\d*$")
_SAVED: dict[type, tuple[str, ...]] = {}


#: Returns an argument of an operation by name, or its "result": an array, a number, or None.
Get = Callable[[str], Any]
Reason = tuple[str, int]  # what is wrong, and for how many elements
Check = Callable[[Get], Reason]
_UNKNOWN: Reason = ("", 0)


def is_bad(array: Array | None) -> bool:
    """Whether an element is NaN or infinite."""
    return array is not None and not bool(np.isfinite(array).all())


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


def _if_any(mask: Any, reason: str) -> Reason:
    count = _count(mask)
    return (reason, count) if count else _UNKNOWN


def _log(get: Get, limit: float = 0.0) -> Reason:
    x = get("self")
    if x is None or np.iscomplexobj(x):
        return _UNKNOWN
    below = _if_any(x < limit, "logarithm of a negative number")
    return below if below[1] else _if_any(x == limit, "logarithm of zero")


def _sqrt(get: Get) -> Reason:
    x, result = get("self"), get("result")
    if x is None and result is None:
        return _UNKNOWN
    return _if_any(x < 0 if x is not None else np.isnan(result), "square root of a negative number")


def _rsqrt(get: Get) -> Reason:
    result = get("result")
    if result is None:
        return _UNKNOWN
    negative = _if_any(np.isnan(result), "square root of a negative number")
    return negative if negative[1] else _if_any(np.isinf(result), "one over the square root of zero")


def _div(get: Get) -> Reason:
    y = get("other")
    return _UNKNOWN if y is None else _if_any(np.asarray(y) == 0, "division by zero")


def _pow(get: Get) -> Reason:
    x, exponent = get("self"), get("exponent")
    if x is None or exponent is None:
        return _UNKNOWN
    e = np.asarray(exponent, dtype=np.float64)
    for mask, reason in (
        ((x < 0) & (e != np.floor(e)), "a negative number to the power of a fraction"),
        ((x == 0) & (e < 0), "zero to a negative power"),
    ):
        if mask.any():
            return reason, _count(mask)
    return _if_any(np.abs(x) > 1, "power overflows") if is_bad(get("result")) else _UNKNOWN


def _infinite(reason: str) -> Check:
    def check(get: Get) -> Reason:
        result = get("result")
        return _UNKNOWN if result is None else _if_any(np.isinf(result), reason)

    return check


def _within(name: str, limit: float, inclusive: bool) -> Check:
    def check(get: Get) -> Reason:
        x = get("self")
        if x is None:
            return _UNKNOWN
        beyond = np.abs(x) >= limit if inclusive else np.abs(x) > limit
        return _if_any(beyond, f"{name} of a number beyond {limit:g}")

    return check


def _softmax(get: Get) -> Reason:
    result, x = get("result"), get("self")
    if result is None or not result.ndim:
        return _UNKNOWN
    if x is not None and bool(np.isnan(x).any() or np.isposinf(x).any()):
        return _UNKNOWN
    return _if_any(np.isnan(result), "softmax of a row in which everything is masked")


def _deviation(get: Get) -> Reason:
    x, dim, correction = get("self"), get("dim"), get("correction")
    if x is None:
        return _UNKNOWN
    axes = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, list | tuple) and dim else None
    count = x.size if axes is None else int(np.prod([x.shape[a] for a in axes]))
    used = 1 if correction is None or isinstance(correction, bool) else float(correction)
    return ("standard deviation of one sample", 1) if count <= used else _UNKNOWN


def _nll(get: Get) -> Reason:
    total = get("total_weight")
    if total is not None and total.size == 1 and float(total.reshape(-1)[0]) == 0.0:
        return "mean over no label: all are ignored or have weight zero", 1
    return _UNKNOWN


def _mean(get: Get) -> Reason:
    numel, x = get("self_numel"), get("self")
    empty = (isinstance(numel, int) and numel == 0) or (x is not None and x.size == 0)
    return ("mean of no element", 1) if empty else _UNKNOWN


def _mul(get: Get) -> Reason:
    x, y = get("self"), get("other")
    if x is None or y is None:
        return _UNKNOWN
    return _if_any((np.isinf(x) & (y == 0)) | ((x == 0) & np.isinf(y)), "zero times infinity")


_exp = _infinite("exponential overflows")
_REASONS: Mapping[str, Check] = {
    "log": _log,
    "log2": _log,
    "log10": _log,
    "log1p": lambda get: _log(get, -1.0),
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "div": _div,
    "reciprocal": _infinite("division by zero"),
    "pow": _pow,
    "exp": _exp,
    "exp2": _exp,
    "expm1": _exp,
    "acos": _within("arc cosine", 1, False),
    "asin": _within("arc sine", 1, False),
    "atanh": _within("inverse hyperbolic tangent", 1, True),
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _softmax,
    "_log_softmax": _softmax,
    "std": _deviation,
    "var": _deviation,
    "std_mean": _deviation,
    "var_mean": _deviation,
    "nll_loss": _nll,
    "nll_loss_forward": _nll,
    "mean": _mean,
    "mul": _mul,
}


# Derivatives -------------------------------------------------------------------------------------------------------


def _zero(x: Any) -> Any:
    return x == 0


def _beyond(limit: float) -> Callable[[Any], Any]:
    return lambda x: np.abs(x) > limit


def _at(limit: float) -> Callable[[Any], Any]:
    return lambda x: np.abs(x) == limit


def _repeated(values: Any) -> Any:
    """Whether a value comes again, in rows of sorted ones."""
    alike = np.zeros(values.shape, dtype=bool)
    alike[..., 1:] = values[..., 1:] == values[..., :-1]
    return alike


_TURNING = "derivative of singular vectors of values that are equal is infinite"
#: For each operation: a value it has saved, where its derivative is not finite, and the words for it.
_STEEP: Mapping[str, tuple[tuple[str, Callable[[Any], Any], str], ...]] = {
    "sqrt": (
        ("result", _zero, "derivative of the square root at zero is infinite"),
        ("result", np.isnan, "derivative of the square root of a negative number"),
    ),
    "rsqrt": (
        ("result", np.isinf, "derivative of one over the square root of zero is infinite"),
        ("result", np.isnan, "derivative of the square root of a negative number"),
    ),
    "log": (("self", _zero, "derivative of the logarithm at zero is infinite"),),
    "log2": (("self", _zero, "derivative of the logarithm at zero is infinite"),),
    "log10": (("self", _zero, "derivative of the logarithm at zero is infinite"),),
    "log1p": (("self", lambda x: x == -1, "derivative of the logarithm at zero is infinite"),),
    "div": (("other", _zero, "derivative of a division by zero"),),
    "reciprocal": (("result", np.isinf, "derivative of a division by zero"),),
    "pow": (
        ("self", _zero, "derivative of a power at zero is infinite"),
        ("self", lambda x: x < 0, "derivative of a negative number to the power of a fraction"),
    ),
    "acos": (
        ("self", _at(1.0), "derivative of the arc cosine at one is infinite"),
        ("self", _beyond(1.0), "derivative of the arc cosine of a number beyond 1"),
    ),
    "asin": (
        ("self", _at(1.0), "derivative of the arc sine at one is infinite"),
        ("self", _beyond(1.0), "derivative of the arc sine of a number beyond 1"),
    ),
    "acosh": (("self", _at(1.0), "derivative of the inverse hyperbolic cosine at one is infinite"),),
    "atanh": (("self", _at(1.0), "derivative of the inverse hyperbolic tangent at one is infinite"),),
    "erfinv": (("self", _at(1.0), "derivative of the inverse error function at one is infinite"),),
    "logit": (("self", lambda x: (x == 0) | (x == 1), "derivative of the logit at zero or one is infinite"),),
    "exp": (("result", np.isinf, "derivative of an exponential that overflows"),),
    "exp2": (("result", np.isinf, "derivative of an exponential that overflows"),),
    "expm1": (("result", np.isinf, "derivative of an exponential that overflows"),),
    "hypot": (("result", _zero, "derivative of the length of the point zero is infinite"),),
    "linalg_vector_norm": (("result", _zero, "derivative of the norm of zero is infinite"),),
    "norm": (("result", _zero, "derivative of the norm of zero is infinite"),),
    "std": (("result", _zero, "derivative of the standard deviation of equal numbers is infinite"),),
    "linalg_svd": (("S", _repeated, _TURNING),),
    "linalg_eigh": (("eigenvalues", _repeated, _TURNING), ("L", _repeated, _TURNING)),
}
#: Ends the words where the derivative meets a gradient of zero.
_LEFT_OUT = ", and a gradient of zero is multiplied by it: torch.where, a mask or a factor of zero does not keep it out"


def _steepness(op: str, get: Get) -> Reason:
    """Returns where the derivative of an operation is not finite though its result may be."""
    if op == "atan2":
        y, x = get("self"), get("other")
        if y is None or x is None:
            return _UNKNOWN
        return _at_least_one(
            (y == 0) & (x == 0), "derivative of the angle of the point zero is infinite", get
        )
    for name, where, words in _STEEP.get(op, ()):
        value = get(name)
        if value is not None:
            found = _at_least_one(where(np.asarray(value)), words, get)
            if found[1]:
                return found
    return _UNKNOWN


def _at_least_one(mask: Any, words: str, get: Get) -> Reason:
    count = _count(mask)
    if not count:
        return _UNKNOWN
    received = get("received")
    if received is not None:
        try:
            met = received[np.broadcast_to(mask, received.shape)]
        except ValueError:
            return words, count
        if met.size and not met.any():
            return words + _LEFT_OUT, count
    return words, count


def reason_of(op: str, get: Get, backward: bool = False) -> Reason:
    """Returns what is wrong with an operation's arguments, and for how many elements; ("", 0) if nothing is known.

    Parameters
    ----------
    op
        Name of the operation, e.g. ``log``.
    get
        Returns an argument ("self", "other", ...), the "result", or the gradient that a derivative has "received": an
        array, a number, or None.
    backward
        Whether the operation itself is fine and its derivative is not.
    """
    op = op.rstrip("_") if not op.startswith("_") else op
    with np.errstate(all="ignore"):
        if backward:
            return _steepness(op, get)
        check = _REASONS.get(op)
        return _UNKNOWN if check is None else check(get)


def operator_of(node: Any) -> str:
    """Returns ``log`` for ``LogBackward0``; a custom function keeps its own name."""
    name = str(node.name())
    short = _NUMBERED.sub("", name).rpartition("::")[2]
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return short
    return re.sub(r"(?<!^)(?=[A-Z])", "_", short).lower()


def saved_by(node: Any) -> dict[str, Any]:
    """Returns what a node has saved, by name; what cannot be unpacked is left out."""
    kind = type(node)
    names = _SAVED.get(kind)
    if names is None:
        if len(_SAVED) > 1024:
            _SAVED.clear()
        names = _SAVED[kind] = tuple(
            name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors"
        )
    found: dict[str, Any] = {}
    for name in names:
        try:
            value = getattr(node, name)
        except (RuntimeError, AttributeError):
            continue
        if isinstance(value, tuple) and name == "saved_tensors":
            found.update({f"saved{index}": item for index, item in enumerate(value)})
        else:
            found[name.removeprefix("_saved_")] = value
    return found
