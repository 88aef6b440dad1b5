"""Trains one program with a plain loop and nothing attached, as a user's script would.

python -m perfbench.run ID [--seed S] [--steps N] [--fixed]

The peer of `./dev bench perf` starts this file as a script and marks its steps itself.
"""

from __future__ import annotations

import argparse
import sys

import torch

from perfbench.programs import PROGRAMS


def main() -> int:
    """Trains."""
    parser = argparse.ArgumentParser(prog="perfbench.run", description=__doc__)
    parser.add_argument("id", choices=sorted(PROGRAMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--fixed", action="store_true", help="the twin without the bottleneck")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    PROGRAMS[arguments.id].run(arguments.seed, arguments.fixed, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
