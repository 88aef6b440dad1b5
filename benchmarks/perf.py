"""Do the rules about time tell the truth: `./dev bench perf`.

Each program of perfbench has one planted bottleneck, and a twin without it. Both train under ``luff run`` in
interleaved pairs. The rule must name the cause, and say nothing of twins and healthy programs; what it expects to be
saved is compared with what the twin saves. Times are contention-free: without the time for which the training thread
waited for a core. A run that waited for more than a quarter of its time is repeated, at most three times, and then
counts as unjudged.

    ./dev bench perf [--steps N] [--pairs N] [--only ID,...] [--json FILE]

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
RULES = {about.rule for about in PROGRAMS.values() if about.rule}
#: What these save is not a share of each step, so it is not compared with the twin's steps.
UNESTIMATED = ("DebugLeftOn", "FirstStepsSlow")


def trained(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> dict[str, Any]:
    """Trains one program and returns what was found, and its profile."""
    about = PROGRAMS[program]
    run, findings = folder / "run", folder / "findings.jsonl"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script = [sys.executable]
    if about.processes > 1:
        script += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={about.processes}"]
    script += ["-m", "perfbench.run", program, "--seed", str(seed), "--steps", str(steps)]
    command = [LUFF, "run", "--run", str(run), "--findings", str(findings)]
    if about.parameters:
        command += ["--rules", about.parameters]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--", *script, *(["--fixed"] if fixed else [])],
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
    """Returns the time of the run for each TRAIN step, without what it lost to others."""
    thread = profile["thread"]
    seconds = profile["seconds"] + profile["evaluation"]["seconds"]
    return float(seconds / profile["steps"] * (1 - thread["run_queue"] / thread["seconds"]))


def compare(program: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains a program and its twin, in pairs, and returns a row of the table."""
    rule, cause = PROGRAMS[program].rule, PROGRAMS[program].cause
    row: dict[str, Any] = {"program": program, "rule": rule, "cause": cause}
    row |= {"judged": 0, "named": 0, "by_cause": 0, "alarms": 0, "unjudged": 0, "runs": 0, "told": []}
    estimates, before, after, words = [], [], [], []
    for pair in range(arguments.pairs):
        for fixed in (False, True) if rule else (False,):
            result = judged(program, arguments.seed + pair, fixed, arguments.steps, folder)
            row["runs"] += 1
            if result is None:
                row["unjudged"] += 1
                continue
            profile, about = result["profile"], [f for f in result["findings"] if f["event"] == "new"]
            timed = [f for f in about if f.get("saving") or f["rule"] in RULES]
            row["told"] += [f"{f['rule']}/{f['cause']}{' (twin)' if fixed else ''}" for f in timed]
            if rule is None or fixed:
                row["alarms"] += bool(timed)
            else:
                right = [f for f in timed if f["rule"] == rule]
                row["judged"] += 1
                row["named"] += bool(right)
                row["by_cause"] += any(f["cause"] == cause for f in right)
                words += [f["step"] for f in right]
                estimates += [f["saving"]["seconds_a_step"] for f in right if f.get("saving")]
            (after if fixed else before).append(step_seconds(profile))
    if words:
        row["first_word"] = statistics.median(words)
    if estimates and before and after:
        row["estimate_s"] = statistics.median(estimates)
        row["saved_s"] = statistics.median(before) - statistics.median(after)
        row["ratio"] = row["estimate_s"] / row["saved_s"] if row["saved_s"] > 0 else float("inf")
    return row


def told(row: dict[str, Any]) -> str:
    """Returns a line of the table."""
    ratio = f"estimate / saved {row['ratio']:.2f}" if "ratio" in row else ""
    named = "healthy"
    if row["rule"]:
        named = f"{row['rule']} {row['named']}, cause {row['by_cause']} of {row['judged']}"
    word = f"step {row['first_word']:.0f}" if "first_word" in row else ""
    return (
        f"perf {row['program']:<16} {named:<34} alarms {row['alarms']}  "
        f"unjudged {row['unjudged']} of {row['runs']}  {word:<10} {ratio}"
    )


def gates_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the gates over all programs."""
    planted = [row for row in rows if row["rule"]]
    runs, unjudged = sum(row["runs"] for row in rows), sum(row["unjudged"] for row in rows)
    judged_runs = sum(row["judged"] for row in planted)
    ratios = [row["ratio"] for row in planted if "ratio" in row and row["rule"] not in UNESTIMATED]
    gates = [
        {"name": "perf/alarms", "value": sum(row["alarms"] for row in rows), "limit": 0},
        {"name": "perf/unjudged share", "value": unjudged / max(runs, 1), "limit": 0.05},
    ]
    for gate in gates:
        gate["ok"] = gate["value"] <= gate["limit"]
    if judged_runs:
        named = sum(row["by_cause"] for row in planted) / judged_runs
        gates.append(
            {"name": "perf/named with the cause", "value": named, "limit": 0.90, "ok": named >= 0.90}
        )
    if ratios:
        good = sum(0.5 <= ratio <= 2 for ratio in ratios) / len(ratios)
        gates.append(
            {"name": "perf/estimates within a half and two", "value": good, "limit": 0.80, "ok": good >= 0.80}
        )
    return gates


def missing(program: str) -> str:
    """Returns what a program lacks here; "" if nothing."""
    needs = PROGRAMS[program].needs
    return "a C++ compiler" if "compiler" in needs and shutil.which("g++") is None else ""


def main() -> int:
    """Trains, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="ID,...", help="these programs")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="luff-perf-"))
    rows = []
    chosen = arguments.only.split(",") if arguments.only else list(PROGRAMS)
    if unknown := [name for name in chosen if name not in PROGRAMS]:
        parser.error(f"--only: {', '.join(unknown)}: expected some of {', '.join(PROGRAMS)}")
    try:
        for program in chosen:
            if lacks := missing(program):
                print(f"perf {program:<16} skipped: it needs {lacks}")
                continue
            rows.append({"row": "perfbench", **compare(program, arguments, folder / "work")})
            print(told(rows[-1]), flush=True)
            if rows[-1]["told"] and (rows[-1]["alarms"] or not rows[-1]["named"]):
                print(f"       said: {', '.join(rows[-1]['told'])}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return finish(rows, gates_of(rows), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
