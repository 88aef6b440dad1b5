"""Says what rules are developed on, and what only the final table reads: half of the programs, the newest operators."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from mutants.operators import NEWEST, OPERATORS
from mutants.source import Source

PROGRAMS = Path(__file__).parent / "programs"
ORIGINAL = "original"  # takes the place of an operator: the unchanged script


def program_apart(program: str) -> bool:
    """Returns whether a program is in the half that is not looked at while rules are written."""
    return hashlib.sha256(program.encode()).digest()[0] % 2 == 1


def kept_apart(operator: str) -> bool:
    """Returns whether an operator is not looked at while rules are written: all of the newest generation are."""
    return operator in OPERATORS and OPERATORS[operator].generation == NEWEST


def half(program: str, operator: str) -> str:
    """Returns ``develop``, or which part of a mutant is kept apart: ``program``, ``operator`` or ``both``."""
    apart = program_apart(program), kept_apart(operator)
    return {(False, False): "develop", (True, False): "program", (False, True): "operator"}.get(apart, "both")


def programs() -> list[str]:
    """Returns the names of all base programs."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def mutate(program: str, operator: str) -> str | None:
    """Returns the script of a mutant; None if the operator does not apply."""
    source = Source((PROGRAMS / f"{program}.py").read_text())
    if operator == ORIGINAL:
        return source.text()
    before = source.text()
    if not OPERATORS[operator].edit(source):
        return None
    after = source.text()
    return None if after == before else after


def all_mutants(
    chosen: list[str], operators: list[str], wanted: Callable[[str, str], bool] = lambda *_: True
) -> list[tuple[str, str, str]]:
    """Returns (program, operator, script) for each chosen program and each chosen operator that applies to it.

    Only pairs that are `wanted` are made: making all of them takes a minute.
    """
    found = []
    for program in chosen:
        for operator in operators:
            if wanted(program, operator) and (text := mutate(program, operator)):
                found.append((program, operator, text))
    return found
