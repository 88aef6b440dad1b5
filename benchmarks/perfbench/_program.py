"""What a program says of itself, and the list that programs enter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from .parts import BATCH, Sleeping

__all__ = ["PACE", "PROGRAMS", "Program", "loader_of", "program"]

PACE = 0.028  # seconds of a forward pass
Run = Callable[[int, bool, int], None]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    run
        Called with seed, whether it is the twin, and steps.
    rule, cause
        What has to be named; None for a healthy one.
    says
        Text that the finding must contain, besides: the place, or what is waited for.
    parameters
        Of rules, so that the program need not run for minutes: `--rules` of `luff run`.
    settings
        Lines of the configuration (TOML) of `luff run`.
    processes
        Ranks that train together.
    contends
        It lacks cores by its own fault: not its own waiting tells whether others took them, but what these used.
    alone
        It uses more than a core, so no other program runs beside it.
    needs
        What has to be there, or the program is skipped: "compiler", "swap", "gpu".
    trace
        Its rule needs a trace, which the program asks for in its loop: "operators", or "stacks" with functions of
        Python, which tell the place.
    """

    run: Run
    rule: str | None = None
    cause: str | None = None
    says: str = ""
    parameters: str = ""
    settings: str = ""
    processes: int = 1
    contends: bool = False
    alone: bool = False
    needs: tuple[str, ...] = ()
    trace: str = ""


PROGRAMS: dict[str, Program] = {}


def program(rule: str | None = None, cause: str | None = None, **more: Any) -> Callable[[Run], Run]:
    """Enters a function into the list under its own name."""

    def add(run: Run) -> Run:
        PROGRAMS[run.__name__.lstrip("_")] = Program(run, rule, cause, **more)
        return run

    return add


def loader_of(steps: int, seed: int, seconds: float = 0.0, **more: Any) -> DataLoader[Any]:
    """Returns a loader of so many batches that take so many seconds of sleep, or `operations` of `spin` a sample."""
    torch.manual_seed(seed)
    operations = more.pop("operations", 0)
    return DataLoader(Sleeping(steps * BATCH, seconds / BATCH, seed, operations), batch_size=BATCH, **more)
