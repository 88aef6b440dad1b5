"""Judges kept runs of mutants with today's rules, and counts correct results."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faultbench.score import wilson

from mutants.halves import ORIGINAL
from mutants.operators import OPERATORS

TIMEOUT_S = 120


def findings_of(luff: str, run: Path) -> list[dict[str, Any]]:
    """Returns the leading findings of a run, ordered by step."""
    done = subprocess.run(
        [luff, "check", str(run), "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"luff check ended with {done.returncode} for {run}: {done.stderr[-500:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted((f for f in found if not f.get("leader")), key=lambda f: f["global_step"])


def judged(luff: str, folder: Path) -> dict[str, Any]:
    """Judges one kept run."""
    about: dict[str, Any] = json.loads((folder / "mutant.json").read_text())
    found = findings_of(luff, folder / "run")
    operator = OPERATORS.get(about["operator"])
    rules = operator.rules if operator and about["operator"] != ORIGINAL else ()
    own = [f for f in found if f["rule"] in rules]
    texts = " ".join(str(f.get("remedy", "")).lower() for f in own)
    return about | {
        "rules": [f["rule"] for f in found],
        "fault": bool(rules),
        "named": bool(own),
        "first": bool(found) and found[0]["rule"] in rules,
        "remedy": bool(operator and any(word in texts for word in operator.remedy)),
        "alarm": bool(found),
        "stop": any(f["severity"] == "stop" for f in found),
    }


def judge(luff: str, root: Path, *, apart: bool) -> list[dict[str, Any]]:
    """Judges all kept runs in a folder; the half that is kept apart only if `apart`."""
    folders = sorted(path.parent for path in root.glob("*/mutant.json"))
    if not apart:
        folders = [f for f in folders if json.loads((f / "mutant.json").read_text())["half"] == "develop"]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda folder: judged(luff, folder), folders))


def share(hits: int, n: int) -> str:
    """Returns the share of hits as text, with Wilson's interval of 95 %."""
    if n == 0:
        return "-"
    low, high = wilson(hits / n, n)
    return f"{hits} of {n}, {hits / n:.0%} ({low:.0%} to {high:.0%})"


def table(rows: list[dict[str, Any]]) -> None:
    """Prints the sums by half, and for each operator the rules that reported something else."""
    print(
        "| half | named | first alert right | remedy right | healthy with an alarm |\n| --- | --- | --- | --- | --- |"
    )
    for half in ("develop", "program", "operator", "both"):
        own = [row for row in rows if row["half"] == half]
        faults, quiet = [r for r in own if r["fault"]], [r for r in own if not r["fault"]]
        if own:
            cells = [share(sum(r[key] for r in faults), len(faults)) for key in ("named", "first", "remedy")]
            print(f"| {half} | {' | '.join(cells)} | {share(sum(r['alarm'] for r in quiet), len(quiet))} |")
    print("\n| operator | mutants | named | first | otherwise said |\n| --- | --- | --- | --- | --- |")
    for operator in sorted({row["operator"] for row in rows}):
        own = [row for row in rows if row["operator"] == operator]
        others = sorted({rule for row in own if not (row["fault"] and row["named"]) for rule in row["rules"]})
        print(
            f"| {operator} | {len(own)} | {sum(r['named'] for r in own)} | {sum(r['first'] for r in own)} | "
            f"{', '.join(others) or 'nothing'} |"
        )
