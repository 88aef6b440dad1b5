"""Trains a script under a plain `luff run`, once: its score proves the fault, its run is judged.

A score under `luff run` is that of the bare script, bit for bit. So no script that is judged is trained without Luff,
and the further seeds of originals, of which nothing but the score is read, are trained bare.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from mutants.halves import ORIGINAL, PROGRAMS, half, mutate
from mutants.operators import OPERATORS

__all__ = ["SEEDS", "environment", "interpreter", "needed", "train", "verdict"]

SEEDS = (
    0,
    1,
    2,
)  # an original is trained with each, and shows how far healthy scores spread; a mutant with the first
TIMEOUT_S = 180
ROOT = Path(os.environ.get("LUFF_BENCH_ROOT") or Path(__file__).resolve().parents[2])


def needed(program: str) -> str:
    """Returns the environment that a program names in a comment, e.g. ``tensorflow``; empty if it names none."""
    named = re.search(r"^# environment: (\w+)$", (PROGRAMS / f"{program}.py").read_text(), re.MULTILINE)
    return named[1] if named else ""


def interpreter(program: str) -> str | None:
    """Returns the Python that runs a program; None if its environment was not made."""
    name = needed(program)
    python = ROOT / ".venvs" / name / "bin" / "python" if name else Path(sys.executable)
    return str(python) if python.exists() else None


def environment(seed: int) -> dict[str, str]:
    """Returns the environment variables for a script."""
    return {"SEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def train(
    luff: str, root: Path, program: str, operator: str, seed: int, python: str | None = None
) -> float | None:
    """Trains a mutant, unless it was; returns its score. None if the script fails.

    Writes into a folder of `root`: the runs of its trainings, its output, and what is known of it. Seeds other than
    the first only show how far scores spread, and are trained without Luff.
    """
    folder = root / f"{program}-{operator}-{seed}"
    about = folder / "mutant.json"
    if about.exists():
        return json.loads(about.read_text())["score"]  # type: ignore[no-any-return]
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted training
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(mutate(program, operator) or "")
    watched = [luff, "run", "--run", str(folder / "run"), "--"] if seed == SEEDS[0] else []
    command = [*watched, python or interpreter(program) or sys.executable, str(script)]
    with (folder / "output.txt").open("wb") as output:
        try:
            code = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment(seed),
                timeout=TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    found = re.findall(r"^score (\S+)$", (folder / "output.txt").read_text(errors="replace"), re.MULTILINE)
    score = float(found[-1]) if found and code == 0 else None
    if score is not None and score != score:
        score = float("-inf")
    known = {"program": program, "operator": operator, "seed": seed, "half": half(program, operator)}
    about.write_text(json.dumps(known | {"exit": code, "score": score}))
    return score


def verdict(operator: str, base: list[float], own: float | None) -> str:
    """Returns ``fault``, ``healthy``, or why a mutant is dropped.

    Parameters
    ----------
    base
        Scores of the original program, for several seeds.
    own
        Score of the mutant; None if it fails.
    """
    if own is None:
        return "does not run"
    mean = sum(base) / len(base)
    spread = max(max(base) - min(base), 0.02 * abs(mean), 1e-6)
    harm = own < mean - 2 * spread
    if operator == ORIGINAL or not OPERATORS[operator].rules:
        return "does harm" if harm else "healthy"
    return "fault" if harm or OPERATORS[operator].contract else "does no harm"
