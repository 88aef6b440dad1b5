"""Judges kept runs of mutants with today's rules, and counts correct results."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mutants import training
from mutants.halves import ORIGINAL, half
from mutants.operators import OPERATORS

TIMEOUT_S = 120


def findings_of(luff: str, run: Path) -> list[dict[str, Any]]:
    """Returns all that is told of the findings of a run, ordered by step."""
    done = subprocess.run(
        [luff, "check", str(run), "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"luff check ended with {done.returncode} for {run}: {done.stderr[-500:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted((f for f in found if "rule" in f), key=lambda f: f["global_step"])


def headline(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the finding that the verdict names (`FindingsInShort` in src/cli/report.cc), in its newest form."""
    newest = {finding["id"]: finding for finding in told}
    groups: dict[str, tuple[bool, bool, bool, int]] = {}
    for finding in newest.values():
        leader = newest.get(finding["leader"], finding)
        stops = finding["severity"] == "stop"
        nan = stops and leader["rule"] == "NonFinite"
        rank = leader["healed"], not stops, not nan, leader["since_step"]
        groups[leader["id"]] = min(rank, groups.get(leader["id"], rank))
    return newest[min(groups, key=lambda one: groups[one])] if groups else None


def judged(luff: str, folder: Path, base: list[float]) -> dict[str, Any]:
    """Judges one kept script; `base`: scores of its original. Its trainings may be several runs."""
    about: dict[str, Any] = json.loads((folder / "mutant.json").read_text())
    about["half"] = half(about["program"], about["operator"])  # today's, which a kept run may not know
    verdict = training.verdict(about["operator"], base, about["score"])
    if verdict not in ("fault", "healthy"):
        return about | {"dropped": verdict}
    runs = sorted(path for path in folder.glob("run*") if (path / "run.json").exists())
    told = [findings_of(luff, run) for run in runs]
    by_run = [[f for f in findings if not f["leader"]] for findings in told]
    found = [finding for findings in by_run for finding in findings]
    operator = OPERATORS.get(about["operator"])
    rules = operator.rules if operator else ()
    own = [f for f in found if f["rule"] in rules]
    heads = [one for one in map(headline, told) if one is not None]
    # The finding that names the fault first must also say what mends it; a later one does not make up for it.
    remedy = str(own[0]["remedy"]).lower() if own else ""
    return about | {
        "dropped": "",
        "rules": list(dict.fromkeys(f["rule"] for f in found)),
        "fault": bool(rules),
        "named": bool(own),
        "first": any(findings and findings[0]["rule"] in rules for findings in by_run),
        "headline": any(one["rule"] in rules for one in heads),
        "remedy": bool(operator and any(word in remedy for word in operator.remedy)),
        "alarm": bool(found),
        "stop": any(f["severity"] == "stop" for f in found),
    }


def judge(luff: str, root: Path, *, apart: bool) -> list[dict[str, Any]]:
    """Judges all kept runs in a folder: those of the half to develop on, and, if asked for, what is kept apart."""
    kept = {path.parent: json.loads(path.read_text()) for path in sorted(root.glob("*/mutant.json"))}
    scores: dict[str, list[float]] = {}
    for about in kept.values():
        if about["operator"] == ORIGINAL and about["score"] is not None:
            scores.setdefault(about["program"], []).append(about["score"])
    wanted = [
        (folder, scores[about["program"]])
        for folder, about in kept.items()
        if (apart or half(about["program"], about["operator"]) == "develop")
        and about["seed"] == 0
        and about["program"] in scores
    ]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: judged(luff, *one), wanted))
