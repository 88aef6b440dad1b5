"""Operators: each puts one fault (or one harmless peculiarity) into an ordinary script."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from mutants.source import Source

__all__ = ["NEWEST", "OPERATORS", "PLANNED", "Operator", "fault", "healthy"]

GENERATIONS = {
    "second": 2,
    "third": 3,
    "fourth": 4,
}  # by the first word of a module's name; all other modules are of the first
NEWEST = 4  # the generation that is kept apart

PLANNED = {  # rules that operators name, but that do not exist yet
    "SharedParameter": "a parameter that two optimizers hold",
    "TargetGradient": "a gradient that goes through the target of a loss",
}


@dataclass(frozen=True)
class Operator:
    """One kind of edit.

    Attributes
    ----------
    name
        The name of its function.
    what
        The resulting fault in one sentence (the docstring of its function).
    rules
        Rules that should report this fault. Empty: the script stays healthy, and any finding is a false alarm.
    remedy
        Lower-case words, one of which the finding's remedy must contain, so that it names the repair.
    contract
        True if the edit violates the framework's documentation, and so is a fault even if the score does not fall.
        Otherwise a mutant whose score does not fall is dropped.
    edit
        Edits a script in place. Returns False if it does not apply.
    generation
        Rules are developed on all of them but the newest, which is kept apart.
    """

    name: str
    what: str
    rules: tuple[str, ...]
    remedy: tuple[str, ...]
    contract: bool
    edit: Callable[[Source], bool]
    generation: int


OPERATORS: dict[str, Operator] = {}


def _add(
    edit: Callable[[Source], bool], rules: tuple[str, ...], remedy: tuple[str, ...], contract: bool
) -> None:
    name = edit.__name__
    if name in OPERATORS:
        raise ValueError(f"two operators are called {name}")
    generation = GENERATIONS.get(edit.__module__.rpartition(".")[2].partition("_")[0], 1)
    what = (edit.__doc__ or "").strip()
    OPERATORS[name] = Operator(name, what, rules, remedy, contract, edit, generation)


def fault(
    *rules: str, remedy: tuple[str, ...], contract: bool = False
) -> Callable[[Callable[[Source], bool]], Callable[[Source], bool]]:
    """Registers a function as an operator that inserts a fault."""

    def decorate(edit: Callable[[Source], bool]) -> Callable[[Source], bool]:
        _add(edit, rules, remedy, contract)
        return edit

    return decorate


def healthy(edit: Callable[[Source], bool]) -> Callable[[Source], bool]:
    """Registers a function as an operator whose edit looks suspicious, but keeps a healthy script healthy."""
    _add(edit, (), (), False)
    return edit


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
