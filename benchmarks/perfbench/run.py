"""Trains one program with a plain loop and nothing attached, as a user's script would.

python -m perfbench.run ID [--seed S] [--steps N] [--fixed] [--priority N] [--trace-at N [--stacks]]

The peer of `./dev bench perf` starts this file as a script and marks its steps itself.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

from perfbench.parts import Trace
from perfbench.programs import PROGRAMS


def main() -> int:
    """Trains."""
    parser = argparse.ArgumentParser(prog="perfbench.run", description=__doc__)
    parser.add_argument("id", choices=sorted(PROGRAMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--fixed", action="store_true", help="the twin without the bottleneck")
    parser.add_argument("--priority", type=int, metavar="N", help="of the thread that trains, as of nice")
    parser.add_argument(
        "--trace-at", type=int, default=0, metavar="N", help="ask Luff for a trace after N steps"
    )
    parser.add_argument("--stacks", action="store_true", help="of Python, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.priority is not None:
        os.setpriority(
            os.PRIO_PROCESS, 0, arguments.priority
        )  # of this thread, and of processes that it starts
    Trace.at, Trace.stacks = arguments.trace_at, arguments.stacks
    PROGRAMS[arguments.id].run(arguments.seed, arguments.fixed, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
