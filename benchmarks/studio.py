"""What `luff serve` and its page cost: each figure beside its limit.

usage: ./dev bench studio [--only PART,...] [--full] [--minutes N] [--json FILE]

Figures of the server are CPU time of its process, of all its threads; those of the page are CPU time of the browser's
main thread from a trace. Load on the machine makes neither smaller, so the best of several rounds counts. Times of
"first picture" and "pixel" are by the clock, and load adds to them. What cannot be measured here is named.

The large run has 5,000 tensors x 2,000 steps; --full 20,000 steps (16 GB of disk). `--only heap` keeps the page open
on a live run for --minutes (10); it is no part of the rest.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from _gates import finish, say
from _studio import Bench, Skipped

PARTS = ("sizes", "large", "many", "page", "training", "tensorboard", "trainscope")
LONG_PARTS = ("heap",)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default=",".join(PARTS),
        help=f"parts, of {', '.join(PARTS + LONG_PARTS)}; by default all but the last",
    )
    parser.add_argument("--tensors", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--full", action="store_true", help="5,000 tensors x 20,000 steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10, help="of the part heap")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS + LONG_PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS + LONG_PARTS)}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as folder:
        bench = Bench(Path(folder), args.tensors, 20_000 if args.full else args.steps, args.rounds)
        bench.minutes = args.minutes
        for part in parts:
            print(f"{part}; load {os.getloadavg()[0]:.1f}", flush=True)
            try:
                importlib.import_module(f"_studio_{part}").measure(bench)
            except Skipped as reason:
                bench.skip(part, str(reason))
            bench.show()
    gates = bench.gates()
    results = [{"name": name, "values": values} for name, values in bench.found.items()]
    print(f"\n{args.tensors} tensors x {bench.steps} steps; best of the rounds")
    print("| what | measured | limit | |\n| --- | --- | --- | --- |")
    by_name = {str(gate["name"]): gate for gate in gates}
    for name, values in bench.found.items():
        gate = by_name.get(name)
        print(
            f"| {name} | {min(values):.4g} | {gate['limit'] if gate else ''} | {say(gate['ok']) if gate else ''} |"
        )
    for name, reason in bench.skipped.items():
        print(f"skipped: {name}: {reason}")
    return finish(results, gates, args.json)


if __name__ == "__main__":
    sys.exit(main())
