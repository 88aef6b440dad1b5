"""Operators: each puts one fault (or one harmless peculiarity) into an ordinary script."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from mutants.source import Source

__all__ = ["OPERATORS", "PLANNED", "Operator", "fault", "healthy"]

PLANNED = {  # rules that faults name and that do not exist yet
    "SharedParameter": "a parameter that two optimizers hold",
    "TargetGradient": "a gradient that goes through the target of a loss",
}


@dataclass(frozen=True)
class Operator:
    """One kind of edit.

    Attributes
    ----------
    name
        Its function's name.
    what
        What is wrong then, one sentence (its docstring).
    rules
        Rules that name this fault; empty: the script stays healthy, and any finding is a false alarm.
    remedy
        Words of which the finding's remedy must hold one, in lower case: it names the edit that mends.
    contract
        True if it breaks what the framework's documentation asks for, so that it is a fault even where the score
        does not fall; else a mutant whose score stays is dropped.
    edit
        Edits a script in place. Returns False where it does not apply.
    """

    name: str
    what: str
    rules: tuple[str, ...]
    remedy: tuple[str, ...]
    contract: bool
    edit: Callable[[Source], bool]


OPERATORS: dict[str, Operator] = {}


def _add(
    edit: Callable[[Source], bool], rules: tuple[str, ...], remedy: tuple[str, ...], contract: bool
) -> None:
    name = edit.__name__
    if name in OPERATORS:
        raise ValueError(f"two operators are called {name}")
    OPERATORS[name] = Operator(name, (edit.__doc__ or "").strip(), rules, remedy, contract, edit)


def fault(
    *rules: str, remedy: tuple[str, ...], contract: bool = False
) -> Callable[[Callable[[Source], bool]], Callable[[Source], bool]]:
    """Makes a function an operator that puts in a fault."""

    def decorate(edit: Callable[[Source], bool]) -> Callable[[Source], bool]:
        _add(edit, rules, remedy, contract)
        return edit

    return decorate


def healthy(edit: Callable[[Source], bool]) -> Callable[[Source], bool]:
    """Makes a function an operator that leaves a healthy script healthy, and looks suspicious."""
    _add(edit, (), (), False)
    return edit


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
