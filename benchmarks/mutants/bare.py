"""Trains scripts without Luff, each in a fork of a process that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

__all__ = ["TIMEOUT_S", "environment", "score"]

TIMEOUT_S = 120
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "sklearn.datasets", "sklearn.metrics", "sklearn.model_selection"])


def environment(seed: int) -> dict[str, str]:
    """Returns the environment variables for a script."""
    return {"SEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def _train(script: str, seed: int, output: str) -> None:
    os.environ |= environment(seed)
    file = os.open(output, os.O_WRONLY | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def score(script: Path, seed: int) -> float | None:
    """Runs a script and returns the score that it prints; None if it fails, minus infinity for NaN."""
    os.environ |= {"OMP_NUM_THREADS": "1"}  # read when torch is imported, before the fork
    with tempfile.NamedTemporaryFile() as output:
        process = _context.Process(target=_train, args=(str(script), seed, output.name))
        process.start()
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        found = re.findall(r"^score (\S+)$", Path(output.name).read_text(), re.MULTILINE)
    if process.exitcode != 0 or not found:
        return None
    value = float(found[-1])
    return value if value == value else float("-inf")
