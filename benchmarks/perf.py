"""Do the rules about time tell the truth: `./dev bench perf`.

Each program of perfbench has one planted bottleneck, and a twin without it. Both train under ``luff run`` in
interleaved pairs. The rule must name the cause, and say nothing of twins and healthy programs; what it expects to be
saved is compared with what the twin saves. Times are contention-free: without the time for which the training thread
waited for a core. A run that waited for more than a quarter of its time is repeated, at most three times, and then
counts as unjudged.

    ./dev bench perf [--steps N] [--pairs N] [--only ID] [--json FILE]

Exit code: 0 if all gates hold, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _gates import finish, luff_command
from perfbench.programs import PROGRAMS

LUFF = luff_command()
CONTENDED, REPEATS = 0.25, 3


def trained(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> dict[str, Any]:
    """Trains one program and returns what was found, and its profile."""
    run, findings = folder / "run", folder / "findings.jsonl"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script = [sys.executable, "-m", "perfbench.run", program, "--seed", str(seed), "--steps", str(steps)]
    command = [LUFF, "run", "--run", str(run), "--findings", str(findings), "--", *script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(["--fixed"] if fixed else [])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{program} failed: {done.stderr[-2000:]}")
    shown = subprocess.run(
        [LUFF, "profile", str(run), "--json"], capture_output=True, text=True, check=True
    ).stdout
    lines = findings.read_text(encoding="utf-8").splitlines() if findings.exists() else []
    return {"profile": json.loads(shown), "findings": [json.loads(line) for line in lines if line.strip()]}


def contended(profile: dict[str, Any]) -> bool:
    """Returns whether the training thread lacked a core for too much of the time."""
    thread = profile["thread"]
    return thread is None or thread["run_queue"] > CONTENDED * thread["seconds"]


def judged(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> dict[str, Any] | None:
    """Trains until the machine let it; None if it never did."""
    for _ in range(REPEATS):
        result = trained(program, seed, fixed, steps, folder)
        if not contended(result["profile"]):
            return result
    return None


def step_seconds(profile: dict[str, Any]) -> float:
    """Returns the mean time of a step without what it lost to others."""
    thread = profile["thread"]
    return float(profile["seconds"] / profile["steps"] * (1 - thread["run_queue"] / thread["seconds"]))


def compare(program: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains a program and its twin, in pairs, and returns a row of the table."""
    rule = PROGRAMS[program].rule
    row: dict[str, Any] = {
        "program": program,
        "rule": rule,
        "named": 0,
        "alarms": 0,
        "unjudged": 0,
        "runs": 0,
    }
    estimates, before, after, words = [], [], [], []
    for pair in range(arguments.pairs):
        for fixed in (False, True) if rule else (False,):
            result = judged(program, arguments.seed + pair, fixed, arguments.steps, folder)
            row["runs"] += 1
            if result is None:
                row["unjudged"] += 1
                continue
            profile, about = result["profile"], [f for f in result["findings"] if f["event"] == "new"]
            timed = [f for f in about if f.get("saving")]
            if rule is None or fixed:
                row["alarms"] += bool(timed)
            else:
                right = [f for f in timed if f["rule"] == rule]
                row["named"] += bool(right)
                words += [f["step"] for f in right]
                estimates += [f["saving"]["seconds_a_step"] for f in right]
            (after if fixed else before).append(step_seconds(profile))
    if estimates and before and after:
        row["estimate_s"] = statistics.median(estimates)
        row["saved_s"] = statistics.median(before) - statistics.median(after)
        row["ratio"] = row["estimate_s"] / row["saved_s"] if row["saved_s"] > 0 else float("inf")
        row["first_word"] = min(words)
    return row


def main() -> int:
    """Trains, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(PROGRAMS), help="one program")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="luff-perf-"))
    rows, gates = [], []
    try:
        for program, about in PROGRAMS.items():
            if arguments.only not in (None, program):
                continue
            row = compare(program, arguments, folder / "work")
            rows.append({"row": "perfbench", **row})
            ratio = f"estimate / saved {row['ratio']:.2f}" if "ratio" in row else ""
            named = f"named {row['named']} of {arguments.pairs}" if about.rule else "healthy"
            print(
                f"perf {program:<12} {named:<14} alarms {row['alarms']}  unjudged {row['unjudged']}  {ratio}"
            )
            gates.append(
                {
                    "name": f"perf/{program}/alarms",
                    "value": row["alarms"],
                    "limit": 0,
                    "ok": not row["alarms"],
                }
            )
            if about.rule and row["unjudged"] == 0:
                missed = arguments.pairs - row["named"]
                gates.append(
                    {"name": f"perf/{program}/missed", "value": missed, "limit": 0, "ok": not missed}
                )
            if "ratio" in row:
                gates.append(
                    {
                        "name": f"perf/{program}/estimate over saved",
                        "value": row["ratio"],
                        "limit": 2,
                        "ok": 0.5 <= row["ratio"] <= 2,
                    }
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return finish(rows, gates, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
