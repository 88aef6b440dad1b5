"""The cost of writing a record in a long run relative to a short one: ./dev bench store [--json FILE] [--records N].

One process alternates between one run of 10 million records and runs of 10,000 records, until both sides hold the
same number. A run is timed from its first step to its end: rows, sealing of segments, the last footer. Creating its
files is not timed on either side, since it is not a cost per record and would hide growth. Both sides end with the
same number of bytes in the page cache. The gate compares the CPU time of all threads in adjacent pairs; wall time is
printed as well, but depends on the disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _gates import Measured, finish, gate, measured, say
from read import program

SHORT, LIMIT, ROUNDS = 10_000, 1.1, 20


def rounds(records: int) -> list[dict[str, float]]:
    """Returns nanoseconds per record of both sides, for each round."""
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        command = [program("luff_bench_store"), folder, "--compare", str(SHORT), str(records), str(ROUNDS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [json.loads(line) for line in done.stdout.splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run, print the table and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    args = parser.parse_args()
    found: list[dict[str, float]] = []
    ratio = Measured(0, 0, 0)
    for _ in range(2):  # measures once more if the interval crosses the limit
        found += rounds(args.records)
        ratio = measured([r["long_cpu"] / r["short_cpu"] for r in found])
        verdict = gate("cost per record, long over short (CPU time)", ratio, LIMIT)
        if verdict["ok"] != "undecided":
            break
    results: dict[str, float | str] = {"row": "store"}
    for side, records in (("short", SHORT), ("long", args.records)):
        for clock in ("cpu", "wall"):
            column = [r[f"{side}_{clock}"] for r in found]
            results[f"{clock} ns per record at {records:,}, best"] = min(column)
            results[f"{clock} ns per record at {records:,}, median"] = measured(column).median
    wall = measured([r["long_wall"] / r["short_wall"] for r in found])
    # Growth within the run: the last quarter over the first, each relative to the short runs of its rounds.
    quarter = max(1, ROUNDS // 4)
    late = [r["long_cpu"] / r["short_cpu"] for i, r in enumerate(found) if i % ROUNDS >= ROUNDS - quarter]
    early = [r["long_cpu"] / r["short_cpu"] for i, r in enumerate(found) if i % ROUNDS < quarter]
    results["ratio of CPU time"] = ratio.median
    results["ratio of wall time"] = wall.median
    results["last quarter over first"] = measured(late).median / measured(early).median
    for name, value in results.items():
        if isinstance(value, float):
            print(f"{name:<42} {value:>10.3f}")
    print(
        f"CPU time {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f}, {len(found)} pairs), "
        f"wall time {wall.median:.3f} ({wall.low:.3f} to {wall.high:.3f}), limit {LIMIT}: {say(verdict['ok'])}"
    )
    return finish([results], [verdict], args.json)


if __name__ == "__main__":
    sys.exit(main())
