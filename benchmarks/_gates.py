"""Measured values, their intervals, and their limits."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def luff_command() -> str:
    """Returns the luff command: that of `./dev bench`, else the one beside this Python."""
    return os.environ.get("LUFF_EXECUTABLE") or str(Path(sys.executable).with_name("luff"))


@dataclass
class Measured:
    """A median and its confidence interval of about 93 % (8 pairs: second to seventh value)."""

    median: float
    low: float
    high: float


def measured(values: Sequence[float]) -> Measured:
    """Returns the median and its interval, by order statistics."""
    ordered = sorted(values)
    cut = max(0, int(len(ordered) / 2 - 0.9 * len(ordered) ** 0.5))
    return Measured(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def verdict(value: Measured, limit: float) -> bool | str:
    """Returns True, False, or "undecided" if the interval crosses the limit."""
    if value.low <= limit < value.high:
        return "undecided"
    return value.median <= limit


def gate(name: str, value: Measured, limit: float) -> dict[str, Any]:
    """Returns one entry of `gates`, decided by the median and its interval."""
    return {
        "name": name,
        "value": value.median,
        "interval": [value.low, value.high],
        "limit": limit,
        "ok": verdict(value, limit),
    }


def gate_of_best(name: str, values: Sequence[float], limit: float) -> dict[str, Any]:
    """Returns one entry of `gates`, decided by the best of several values, since load can only make them larger."""
    return {"name": name, "value": min(values), "limit": limit, "ok": min(values) <= limit}


def say(ok: bool | str) -> str:
    """Returns the verdict as text for people."""
    return ok if isinstance(ok, str) else "ok" if ok else "FAILED"


def run_parts(description: str | None, parts: Sequence[str], prefix: str) -> int:
    """Runs the command line of a benchmark whose modules ``PREFIX_PART`` have `measure`; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are: {', '.join(parts)}")
    results: list[Mapping[str, Any]] = []
    gates: list[Mapping[str, Any]] = []
    for part in args.parts or parts:
        print(f"{part}; load {os.getloadavg()[0]:.1f}")
        found, held = importlib.import_module(f"{prefix}_{part}").measure()
        results += found
        gates += held
    return finish(results, gates, args.json)


def finish(
    results: Sequence[Mapping[str, Any]], gates: Sequence[Mapping[str, Any]], file: Path | None
) -> int:
    """Writes the JSON file and prints the last line; returns the exit code."""
    if file is not None:
        content = {"results": list(results), "gates": list(gates)}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = [str(g["name"]) for g in gates if g["ok"] is False]
    print(f"{len(gates)} gates, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0
