"""Why an operation has no finite result: its arguments read as memory, compared with what it is defined for.

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


def is_bad(array: Array | None) -> bool:
    """True if an element is NaN or infinite."""
    return array is not None and not bool(np.isfinite(array).all())


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


def _log(get: Callable[[str], Any], limit: float = 0.0) -> tuple[str, int]:
    x = get("self")
    if x is None or np.iscomplexobj(x):
        return "", 0
    below, at = _count(x < limit), _count(x == limit)
    if below:
        return "logarithm of a negative number", below
    return ("logarithm of zero", at) if at else ("", 0)


def _sqrt(get: Callable[[str], Any]) -> tuple[str, int]:
    x, result = get("self"), get("result")
    bad = _count(x < 0) if x is not None else _count(np.isnan(result)) if result is not None else 0
    return ("square root of a negative number", bad) if bad else ("", 0)


def _rsqrt(get: Callable[[str], Any]) -> tuple[str, int]:
    result = get("result")
    if result is None:
        return "", 0
    bad = _count(np.isnan(result))
    if bad:
        return "square root of a negative number", bad
    bad = _count(np.isinf(result))
    return ("one over the square root of zero", bad) if bad else ("", 0)


def _div(get: Callable[[str], Any]) -> tuple[str, int]:
    y = get("other")
    if y is None:
        return "", 0
    bad = _count(np.asarray(y) == 0)
    return ("division by zero", bad) if bad else ("", 0)


def _reciprocal(get: Callable[[str], Any]) -> tuple[str, int]:
    result = get("result")
    bad = 0 if result is None else _count(np.isinf(result))
    return ("division by zero", bad) if bad else ("", 0)


def _pow(get: Callable[[str], Any]) -> tuple[str, int]:
    x, exponent = get("self"), get("exponent")
    if x is None or exponent is None:
        return "", 0
    e = np.asarray(exponent, dtype=np.float64)
    bad = _count((x < 0) & (e != np.floor(e)))
    if bad:
        return "a negative number to the power of a fraction", bad
    bad = _count((x == 0) & (e < 0))
    if bad:
        return "zero to a negative power", bad
    bad = _count(np.abs(x) > 1)
    return ("power overflows", bad) if bad and is_bad(get("result")) else ("", 0)


def _exp(get: Callable[[str], Any]) -> tuple[str, int]:
    result = get("result")
    bad = 0 if result is None else _count(np.isinf(result))
    return ("exponential overflows", bad) if bad else ("", 0)


def _within(name: str, limit: float, inclusive: bool) -> Callable[[Callable[[str], Any]], tuple[str, int]]:
    def check(get: Callable[[str], Any]) -> tuple[str, int]:
        x = get("self")
        if x is None:
            return "", 0
        bad = _count(np.abs(x) >= limit) if inclusive else _count(np.abs(x) > limit)
        return (f"{name} of a number beyond {limit:g}", bad) if bad else ("", 0)

    return check


def _softmax(get: Callable[[str], Any]) -> tuple[str, int]:
    result, x = get("result"), get("self")
    if result is None or not result.ndim:
        return "", 0
    if x is not None and bool(np.isnan(x).any() or np.isposinf(x).any()):
        return "", 0
    bad = np.isnan(result)
    return ("softmax of a row in which everything is masked", _count(bad)) if bad.any() else ("", 0)


def _deviation(get: Callable[[str], Any]) -> tuple[str, int]:
    x, dim, correction = get("self"), get("dim"), get("correction")
    if x is None:
        return "", 0
    axes = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, list | tuple) and dim else None
    count = x.size if axes is None else int(np.prod([x.shape[a] for a in axes]))
    used = 1 if correction is None or isinstance(correction, bool) else float(correction)
    if count <= used:
        return "standard deviation of one sample", 1
    return "", 0


def _nll(get: Callable[[str], Any]) -> tuple[str, int]:
    total = get("total_weight")
    if total is not None and total.size == 1 and float(total.reshape(-1)[0]) == 0.0:
        return "mean over no label: all are ignored or have weight zero", 1
    return "", 0


def _mean(get: Callable[[str], Any]) -> tuple[str, int]:
    numel = get("self_numel")
    x = get("self")
    empty = (isinstance(numel, int) and numel == 0) or (x is not None and x.size == 0)
    return ("mean of no element", 1) if empty else ("", 0)


def _mul(get: Callable[[str], Any]) -> tuple[str, int]:
    x, y = get("self"), get("other")
    if x is None or y is None:
        return "", 0
    bad = _count((np.isinf(x) & (y == 0)) | ((x == 0) & np.isinf(y)))
    return ("zero times infinity", bad) if bad else ("", 0)


_REASONS: Mapping[str, Callable[[Callable[[str], Any]], tuple[str, int]]] = {
    "log": _log,
    "log2": _log,
    "log10": _log,
    "log1p": lambda get: _log(get, -1.0),
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "div": _div,
    "reciprocal": _reciprocal,
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
_IN_BACKWARD = {
    "sqrt": ("result", 0.0, "derivative of the square root at zero is infinite"),
    "log": ("self", 0.0, "derivative of the logarithm at zero is infinite"),
    "div": ("other", 0.0, "derivative of a division by zero"),
    "pow": ("self", 0.0, "derivative of a power at zero is infinite"),
    "acos": ("self", 1.0, "derivative of the arc cosine at one is infinite"),
    "asin": ("self", 1.0, "derivative of the arc sine at one is infinite"),
    "atan2": ("self", 0.0, "derivative of the angle of the point zero"),
    "linalg_vector_norm": ("result", 0.0, "derivative of the norm of zero"),
    "norm": ("result", 0.0, "derivative of the norm of zero"),
    "std": ("result", 0.0, "derivative of the standard deviation of equal numbers"),
}


def reason_of(op: str, get: Callable[[str], Any], backward: bool = False) -> tuple[str, int]:
    """What is wrong with an operation's arguments, and of how many elements; ("", 0) if nothing is known.

    Parameters
    ----------
    op
        Name of the operation, e.g. ``log``.
    get
        Gives an argument ("self", "other", ...), or its "result": an array, a number, or None.
    backward
        The operation itself is fine, its derivative is not.
    """
    op = op.rstrip("_") if not op.startswith("_") else op
    with np.errstate(all="ignore"):
        if backward:
            known = _IN_BACKWARD.get(op)
            value = None if known is None else get(known[0])
            if known is None or value is None:
                return "", 0
            count = _count(np.abs(np.asarray(value)) == known[1])
            return (known[2], count) if count else ("", 0)
        check = _REASONS.get(op)
        return ("", 0) if check is None else check(get)


def operator_of(node: Any) -> str:
    """``LogBackward0`` gives ``log``; a custom function keeps its own name."""
    name = str(node.name())
    short = _NUMBERED.sub("", name).rpartition("::")[2]
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return short
    return re.sub(r"(?<!^)(?=[A-Z])", "_", short).lower()


def saved_by(node: Any) -> dict[str, Any]:
    """What a node has saved, by name; what cannot be unpacked is left out."""
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
