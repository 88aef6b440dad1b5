"""Which parts of a module the code of its class names outside of its constructor.

A part that `forward()` chooses by a condition is named there, though it may not have run yet; one that a copied line
has left out is named nowhere.
"""

from __future__ import annotations

from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch

__all__ = ["is_mentioned"]

_MAKERS = ("__init__", "__post_init__", "extra_repr", "reset_parameters")
_ANY = frozenset(  # by which parts are reached without their names
    ("getattr", "_modules", "children", "modules", "named_children", "named_modules", "get_submodule")
    + ("__dict__", "vars", "__getattr__", "eval", "exec")
)
_known: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def is_mentioned(modules: dict[str, Any], path: str) -> bool:
    """Returns whether a module's parents may name it outside of their constructors.

    Parameters
    ----------
    modules
        The model's modules by their paths; parents come before their parts.
    path
        The module's.
    """
    parent, _, name = path.rpartition(".")
    while path:
        path = path.rpartition(".")[0]
        if (module := modules.get(path)) is None:
            return True
        named = _names_of(type(module))
        if name in named or named & _ANY:
            return True
    return False


def _names_of(kind: type) -> frozenset[str]:
    """Returns the names of attributes and functions in the methods of a class that is not torch's own."""
    names = _known.get(kind)
    if names is None:
        found: set[str] = set()
        for base in kind.__mro__:
            if base is torch.nn.Module or base is object or base.__module__.startswith("torch."):
                continue
            for name, member in vars(base).items():
                if name not in _MAKERS and "init" not in name:
                    _collect(_code_of(member), found)
        names = _known[kind] = frozenset(found)
    return names


def _code_of(member: Any) -> Any:
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(getattr(member, "__wrapped__", member), "__code__", None)


def _collect(code: Any, found: set[str]) -> None:
    if isinstance(code, CodeType):
        found.update(code.co_names)
        for constant in code.co_consts:
            _collect(constant, found)
