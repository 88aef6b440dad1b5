"""Do the rules about time tell the truth: `./dev bench perf`.

Each program of perfbench has one planted bottleneck, and a twin without it. Both train under ``luff run`` in
interleaved pairs. The rule must name the cause, and say nothing of twins and healthy programs; what it expects to be
saved is compared with what the twin saves. Times are contention-free: without the time for which the training thread
waited for a core. A run that waited for more than a quarter of its time is repeated, at most three times, and then
counts as unjudged: what it said is printed, and counts for nothing. TraceML trains the same programs, its marks around
each step, and is asked for no more than the kind of trouble, anywhere in its summary.

    ./dev bench perf [--steps N] [--pairs N] [--jobs N] [--priority N] [--only ID,...] [--tools luff,traceml]
                     [--json FILE]

Exit code: 0 if all gates hold, 1 otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _perf_runs as runs
import _perf_traceml as traceml
from _gates import finish
from perfbench.programs import PROGRAMS

TIMED = {about.rule for about in PROGRAMS.values() if about.rule}
#: What these save is nothing, or no share of each step, so it is not compared with the twin's steps.
UNESTIMATED = ("DebugLeftOn", "FirstStepsSlow", "MemoryGrowth", "StalledTrainingRule")


def timed(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the findings about time."""
    return [f for f in findings if f.get("saving") or f["rule"] in TIMED]


def names(finding: dict[str, Any] | None, program: str) -> bool:
    """Returns whether a finding names the cause, and says what it has to."""
    if finding is None:
        return False
    about = PROGRAMS[program]
    text = " ".join(str(finding.get(key)) for key in ("what", "why", "remedy"))
    return finding["rule"] == about.rule and finding["cause"] == about.cause and about.says in text


def dearest(findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the finding that claims most, of those that follow from no other; where none claims any, the first."""
    leading = [f for f in findings if not f["leader"]]
    return max(leading, key=lambda f: (f.get("saving") or {}).get("seconds_a_step", 0), default=None)


def compare(program: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains a program and its twin, in pairs, and returns a row of the table."""
    about = PROGRAMS[program]
    row: dict[str, Any] = {"row": "perfbench", "program": program, "rule": about.rule, "cause": about.cause}
    row |= {
        "right_unjudged": 0,
        "judged": 0,
        "named": 0,
        "by_cause": 0,
        "leads": 0,
        "alarms": 0,
        "unjudged": 0,
        "runs": 0,
        "told": [],
    }
    peer = {"judged": 0, "named": 0, "runs": 0, "alarms": 0, "told": [], "failed": ""}
    estimates, before, after, words, steps = [], [], [], [], []
    for pair in range(arguments.pairs):
        for fixed in (False, True) if about.rule else (False,):
            if "traceml" in arguments.tools and pair == 0:
                traceml.beside(program, arguments.seed, fixed, arguments.steps, folder, peer)
            if "luff" not in arguments.tools:
                continue
            result, fair = runs.judged(program, arguments.seed + pair, fixed, arguments.steps, folder)
            found = timed(result["findings"])
            which = (" (twin)" if fixed else "") + ("" if fair else " (unjudged)")
            row["told"] += [f"{f['rule']}/{f['cause']}{which}" for f in found]
            row["runs"] += 1
            if not fair:
                row["unjudged"] += 1
                row["right_unjudged"] += not fixed and any(names(f, program) for f in found)
                continue
            if about.rule is None or fixed:
                row["alarms"] += bool(found)
            else:
                right = [f for f in found if names(f, program)]
                row["judged"] += 1
                row["named"] += any(f["rule"] == about.rule for f in found)
                row["by_cause"] += bool(right)
                row["leads"] += names(dearest(found), program)
                words += [f["step"] for f in right]
                estimates += [f["saving"]["seconds_a_step"] for f in right if f.get("saving")]
            (after if fixed else before).append(runs.step_seconds(program, result["profile"]))
            if not fixed:
                steps.append(result["profile"]["steps"])
    if words:
        row["first_word"] = statistics.median(words)
    if before and after:
        row["saved_s"] = statistics.median(before) - statistics.median(after)
        row["lost_s"] = row["saved_s"] * statistics.median(steps)
    if estimates and before and after and about.rule not in UNESTIMATED:
        row["estimate_s"] = statistics.median(estimates)
        row["ratio"] = row["estimate_s"] / row["saved_s"] if row["saved_s"] > 0 else float("inf")
    return row | ({"traceml": peer} if "traceml" in arguments.tools else {})


def told(row: dict[str, Any]) -> str:
    """Returns a line of the table."""
    named = "healthy"
    if row["rule"]:
        named = f"{row['rule']} {row['named']}, cause {row['by_cause']} of {row['judged']}"
    word = f"step {row['first_word']:.0f}" if "first_word" in row else ""
    ratio = f"estimate / saved {row['ratio']:.2f}" if "ratio" in row else ""
    line = (
        f"perf {row['program']:<16} {named:<40} alarms {row['alarms']}  "
        f"unjudged {row['unjudged']} of {row['runs']}  {word:<10} {ratio:<22} "
    )
    if peer := row.get("traceml"):
        of_peer = f"named {peer['named']}, " if row["rule"] else ""
        line += peer["failed"] or f"TraceML {of_peer}alarms {peer['alarms']}"
    if row["rule"] and row["by_cause"] < row["judged"] and "lost_s" in row:
        line += f"\n       what was planted costs {row['lost_s']:.1f} s of the run"
    if row["told"] and (row["alarms"] or row["unjudged"] or row["leads"] < row["judged"]):
        line += f"\n       said: {', '.join(row['told'])}"
    return line.rstrip()


def gates_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the gates over all programs."""
    planted = [row for row in rows if row["rule"]]
    trained, unjudged = sum(row["runs"] for row in rows), sum(row["unjudged"] for row in rows)
    judged_runs = sum(row["judged"] for row in planted)
    ratios = [row["ratio"] for row in planted if "ratio" in row]
    gates = [
        {"name": "perf/alarms", "value": sum(row["alarms"] for row in rows), "limit": 0},
        {"name": "perf/unjudged share", "value": unjudged / max(trained, 1), "limit": 0.05},
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


def summed_up(rows: list[dict[str, Any]], skipped: dict[str, str]) -> str:
    """Returns the last lines of the table."""
    planted = [row for row in rows if row["rule"]]
    judged, leads = sum(row["judged"] for row in planted), sum(row["leads"] for row in planted)
    words = [row["first_word"] for row in planted if "first_word" in row]
    first = f"{statistics.median(words):.0f}" if words else "-"
    lines = [
        f"perf all: {len(planted)} programs with a bottleneck and {len(rows) - len(planted)} healthy ones; "
        f"rule and cause right in {sum(row['by_cause'] for row in planted)} of {judged} judged runs, the dearest "
        f"finding right in {leads}; first word at step {first} (median)"
    ]
    if peers := [row["traceml"] | {"rule": row["rule"]} for row in rows if "traceml" in row]:
        asked = [peer for peer in peers if peer["rule"]]
        lines.append(
            f"perf TraceML: kind of trouble right in {sum(peer['named'] for peer in asked)} of "
            f"{sum(peer['judged'] for peer in asked)} runs; alarms in {sum(peer['alarms'] for peer in peers)} of "
            f"{sum(peer['runs'] - peer['judged'] for peer in peers)} twins and healthy programs"
        )
    for reason in sorted(set(skipped.values())):
        which = [name for name, its in skipped.items() if its == reason]
        lines.append(f"perf skipped {len(which)}: {reason}: {', '.join(which)}")
    return "\n".join(lines)


def main() -> int:
    """Trains, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="programs that mostly sleep, at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--repeats",
        type=int,
        default=runs.REPEATS,
        help="how often a run is trained at most, where others disturb it",
    )
    parser.add_argument(
        "--priority",
        type=int,
        help="of the threads that train, while all else is as nice as this command (for a machine that others use)",
    )
    parser.add_argument("--only", metavar="ID,...", help="these programs")
    parser.add_argument("--tools", default="luff,traceml", help="luff, traceml, or both (default)")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(PROGRAMS)
    if unknown := [name for name in chosen if name not in PROGRAMS]:
        parser.error(f"--only: {', '.join(unknown)}: expected some of {', '.join(PROGRAMS)}")
    arguments.tools = set(arguments.tools.split(","))
    if not arguments.tools <= {"luff", "traceml"}:
        parser.error("--tools: expected luff, traceml, or both")
    if "traceml" in arguments.tools and (reason := traceml.missing()):
        print(f"perf TraceML skipped: {reason}")
        arguments.tools.discard("traceml")
    runs.PRIORITY, runs.REPEATS = arguments.priority, arguments.repeats
    skipped = {name: lacks for name in chosen if (lacks := runs.missing(name))}
    chosen = [name for name in chosen if name not in skipped]
    folder = Path(tempfile.mkdtemp(prefix="luff-perf-"))
    rows: list[dict[str, Any]] = []
    failed: list[str] = []

    def one(name: str) -> None:
        try:
            rows.append(row := compare(name, arguments, folder / name))
            print(told(row), flush=True)
        except runs.Failed as failure:
            failed.append(name)
            print(f"perf {name:<16} FAILED: {failure}", flush=True)

    try:
        with ThreadPoolExecutor(max_workers=arguments.jobs) as several:
            list(several.map(one, [name for name in chosen if not PROGRAMS[name].alone]))
        for name in chosen:
            if PROGRAMS[name].alone:
                one(name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(summed_up(rows, skipped))
    broken = {"name": "perf/programs that failed", "value": len(failed), "limit": 0, "ok": not failed}
    return finish(rows, [*gates_of(rows), broken], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
