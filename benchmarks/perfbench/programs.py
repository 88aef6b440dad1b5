"""All programs: one planted bottleneck each, 30 to 60 % of a step, a twin without it (`fixed`), and healthy ones."""

from __future__ import annotations

from . import data, gpu, hangs, healthy, loop, memory, ranks, threads
from ._program import PROGRAMS as ENTERED
from ._program import Program

__all__ = ["PROGRAMS", "Program"]

_PARTS = (data, loop, threads, memory, ranks, hangs, healthy, gpu)
PROGRAMS = {
    name: program
    for part in _PARTS
    for name, program in ENTERED.items()
    if program.run.__module__ == part.__name__
}
