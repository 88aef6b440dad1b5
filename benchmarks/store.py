"""Cost of writing a record in a short and in a long run: ./dev bench store [--json FILE] [--records N]."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from read import generator

TENSORS = 100
LIMIT = 1.1


def cost(folder: str, records: int, repeats: int) -> float:
    """Nanoseconds for each record, best of `repeats`."""
    found = []
    for i in range(repeats):
        run = f"{folder}/{records}-{i}"
        done = subprocess.run(
            [generator(), run, str(TENSORS), str(records // TENSORS), "0"], check=True, capture_output=True
        )
        found.append(json.loads(done.stdout)["ns_per_record"])
        shutil.rmtree(run)
    return min(found)


def main() -> int:
    """Run, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        short = cost(folder, 10_000, 5)
        long = cost(folder, args.records, 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = {
        "ns per record at 10,000": short,
        f"ns per record at {args.records:,}": long,
        "ratio": long / short,
    }
    for name, value in results.items():
        print(f"{name:<32} {value:>10.3f}")
    ratio = long / short
    gate = {"name": "cost per record, long over short", "value": ratio, "limit": LIMIT, "ok": ratio <= LIMIT}
    if args.json:
        args.json.write_text(json.dumps({"results": results, "gates": [gate]}, indent=2) + "\n")
    return 0 if gate["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
