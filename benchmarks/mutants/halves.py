"""The half of programs and operators to develop on, and the half that only the final table reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mutants.operators import OPERATORS
from mutants.source import Source

PROGRAMS = Path(__file__).parent / "programs"
ORIGINAL = "original"  # the script as it is, in the operator's place


def kept_apart(name: str) -> bool:
    """Whether a program or an operator is of the half that nobody looks at while rules are written."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def half(program: str, operator: str) -> str:
    """``develop``, or what is kept apart of a mutant: ``program``, ``operator`` or ``both``."""
    apart = kept_apart(program), operator != ORIGINAL and kept_apart(operator)
    return {(False, False): "develop", (True, False): "program", (False, True): "operator"}.get(apart, "both")


def programs() -> list[str]:
    """Names of all base programs."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def mutate(program: str, operator: str) -> str | None:
    """The script of a mutant; None where the operator does not apply."""
    source = Source((PROGRAMS / f"{program}.py").read_text())
    if operator == ORIGINAL:
        return source.text()
    before = source.text()
    if not OPERATORS[operator].edit(source):
        return None
    after = source.text()
    return None if after == before else after


def all_mutants(chosen: list[str], operators: list[str]) -> list[tuple[str, str, str]]:
    """(program, operator, script) of the chosen originals and of every chosen operator that applies."""
    found = []
    for program in chosen:
        for operator in operators:
            if text := mutate(program, operator):
                found.append((program, operator, text))
    return found
