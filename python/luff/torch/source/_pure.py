"""Functions and methods whose only effect is their result, by torch's own schemas.

A schema says for each argument whether it is written. A name counts if every form of it that a call without `out=` may
reach writes nothing and takes a tensor.
"""

from __future__ import annotations

import inspect
import io
import logging
from collections import deque
from functools import cache
from typing import Any

import torch
from torch.nn import functional

__all__ = [
    "changes_its_input",
    "is_pure_function",
    "is_pure_method",
    "is_written_in_place",
    "only_tensors_have",
]

_DRAWS = torch.Tag.nondeterministic_seeded
# What waits for a device, or is called so that something is measured or warmed up.
_WAITS = {
    "item",
    "cpu",
    "to",
    "cuda",
    "numpy",
    "tolist",
    "matmul",
    "mm",
    "bmm",
    "einsum",
    "equal",
    "type",
    "is_nonzero",
}
# Forms of a value that have no name of their own that works in place; the others are found by it: `clamp`, `clamp_`.
_FORMS = {
    "view", "view_as", "reshape", "reshape_as", "permute", "movedim", "flatten", "unflatten", "contiguous",
    "expand", "expand_as", "type_as", "softmax", "log_softmax", "normalize", "float", "double", "half", "long",
    "int", "bool", "to", "bfloat16", "where", "masked_scatter", "roll", "flip", "fliplr", "flipud", "repeat", "cat",
    "stack", "pad", "one_hot", "interpolate", "index_put", "minimum", "maximum", "expand_dims", "clip", "swapdims",
    "moveaxis", "scatter_reduce", "repeat_interleave",
}  # fmt: skip
_ASKS = {
    "eq", "ne", "lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal", "not_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "inverse",
}  # fmt: skip
_WORKS_IN_PLACE = {
    "batch_norm",
    "instance_norm",
    "embedding",
    "embedding_bag",
    "multi_head_attention_forward",
}
_OTHERS = (
    list, dict, set, str, bytes, bytearray, int, float, deque, torch.nn.Module, torch.optim.Optimizer, io.TextIOWrapper,
    io.BytesIO, logging.Logger,
)  # fmt: skip
# Words that classes of users and of plotting have for methods that do something.
_COMMON = {
    "add", "addr", "all", "all_gather", "any", "apply", "chunk", "clip", "clone", "coalesce", "contiguous", "copy",
    "cross", "detach", "diff", "dist", "dot", "expand", "eq", "fill", "fix", "flip", "gather", "hash", "hist",
    "histogram", "index", "indices", "inner", "log", "lu", "map", "max", "mean", "median", "min", "mode", "mul",
    "multiply", "mv", "narrow", "norm", "outer", "pin_memory", "positive", "prod", "put", "qr", "reduce",
    "refine_names", "rename", "repeat", "resize", "resize_as", "roll", "round", "scatter", "select", "size",
    "slice_scatter", "sort", "split", "stack", "std", "stft", "sub", "subtract", "sum", "swapaxes", "take", "tile",
    "trace", "unique", "values", "var", "view", "where", "floor", "lerp", "sign", "square", "trunc", "unfold",
}  # fmt: skip


@cache
def _schemas(name: str) -> tuple[Any, ...]:
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))
    except Exception:  # a later torch
        return ()


def _writes(schema: Any) -> bool:
    return any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)


def _takes_tensor(schema: Any) -> bool:
    return any(str(one.type) in ("Tensor", "List[Tensor]") for one in schema.arguments)


@cache
def _is_pure(name: str) -> bool:
    if name.endswith("_") or name.startswith("_"):
        return False
    forms = [one for one in _schemas(name) if not any(arg.is_out for arg in one.arguments)]
    forms = [one for one in forms if "out" not in one.overload_name.split("_")]
    forms = [one for one in forms if _takes_tensor(one)]
    return bool(forms) and all(one.returns and not _writes(one) for one in forms)


@cache
def _draws(name: str) -> bool:
    packet: Any = getattr(torch.ops.aten, name, None)
    try:
        return any(_DRAWS in getattr(packet, form).tags for form in packet.overloads())
    except Exception:  # no such operator
        return False


def is_pure_method(name: str) -> bool:
    """Whether a method of tensors does nothing but give a result."""
    return hasattr(torch.Tensor, name) and name not in _WAITS and _is_pure(name) and not _draws(name)


@cache
def only_tensors_have(name: str) -> bool:
    """Whether a method with this name is one of tensors, or of arrays, where it does the same."""
    return is_pure_method(name) and name not in _COMMON and not any(hasattr(kind, name) for kind in _OTHERS)


@cache
def is_written_in_place(name: str) -> bool:
    """Whether a method of tensors changes the tensor: `clamp_`."""
    return name.endswith("_") and not name.endswith("__") and any(_writes(one) for one in _schemas(name))


@cache
def is_pure_function(full: str, positional: int, named: tuple[str, ...]) -> bool:
    """Whether a function of torch's or NumPy's, by its full name, does nothing but give a result if called so."""
    package, _, name = full.rpartition(".")
    if not positional or name in _WAITS or "out" in named:
        return False
    if package == "torch":
        return callable(getattr(torch, name, None)) and _is_pure(name) and not _draws(name)
    if package == "torch.nn.functional":
        return _is_pure_functional(name, positional, named)
    if package == "numpy":
        import numpy as np

        one = getattr(np, name, None)
        return (isinstance(one, np.ufunc) and positional <= one.nin) or name in (
            "clip",
            "where",
            "expand_dims",
            "squeeze",
        )
    return False


def _is_pure_functional(name: str, positional: int, named: tuple[str, ...]) -> bool:
    one = getattr(functional, name, None)
    if name.endswith("_") or name.startswith("_") or name in _WORKS_IN_PLACE or not callable(one):
        return False
    if "inplace" in named:
        return False
    try:
        given = list(inspect.signature(one).parameters)
    except (TypeError, ValueError):  # a builtin: its schema says it
        return _is_pure(name)
    return "inplace" not in given or positional <= given.index("inplace")


@cache
def changes_its_input(name: str) -> bool:
    """Whether what a function gives could take the place of its input: a form of it, and no answer about it."""
    return name in _FORMS or (name not in _ASKS and bool(_schemas(name + "_")))
