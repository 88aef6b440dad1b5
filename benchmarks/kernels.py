"""
Instruction counts of the tensor kernels, by callgrind.

Counts do not depend on what else the machine does, so a change of a few per cent shows even on a busy one.
Valgrind knows no AVX-512; the kernels are counted for AVX2.

    python benchmarks/kernels.py --program build/dev/benchmarks/cpp/luff_kernel_count
    python benchmarks/kernels.py --program … --update          # write the baseline anew
    python benchmarks/kernels.py --program … --json out.json

Exit code: 0 if every count is within the tolerance of the baseline, 1 if one is above it, 2 if it cannot be measured
(no valgrind, no AVX2, no program).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BASELINE = Path(__file__).parent / "baselines" / "kernels.json"
SIZES = (16, 65536)  # elements: the cost of a call, and the cost of an element
REGION = "LuffCountedRegion"


class CannotMeasureError(Exception):
    """What is needed to count is missing."""


def list_kernels(program: Path) -> list[str]:
    """Return the names of the kernels that `program` can run."""
    environment = {**os.environ, "LUFF_SIMD": "avx2"}
    output = subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout
    target, *names = output.split("\n")
    if target != "simd AVX2":
        message = (
            f"the program uses {target.removeprefix('simd ')}, expected AVX2: this CPU or build lacks it"
        )
        raise CannotMeasureError(message)
    return [name for name in names if name]


def count_instructions(program: Path, kernel: str, elements: int) -> int:
    """Return the instructions of one call of `kernel` over `elements` elements."""
    command = [
        "valgrind",
        "--tool=callgrind",
        f"--toggle-collect={REGION}",
        "--callgrind-out-file=/dev/null",
        str(program),
        kernel,
        str(elements),
    ]
    environment = {**os.environ, "LUFF_SIMD": "avx2"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or found is None:
        message = f"callgrind gave no count for {kernel}: {result.stderr[-300:]}"
        raise CannotMeasureError(message)
    return int(found[1])


def measure(program: Path) -> dict[str, int]:
    """Return instructions by "kernel x elements"."""
    jobs = [(kernel, elements) for kernel in list_kernels(program) for elements in SIZES]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        counts = pool.map(lambda job: count_instructions(program, *job), jobs)
        return {
            f"{kernel} x {elements}": count for (kernel, elements), count in zip(jobs, counts, strict=True)
        }


def report(counts: dict[str, int], baseline: dict[str, int], tolerance: float) -> tuple[str, list[str]]:
    """Return the table and the names that are above the baseline by more than `tolerance`."""
    lines = [f"{'kernel':44}{'instructions':>14}{'per element':>13}{'baseline':>12}{'ratio':>8}"]
    above = []
    for name, count in counts.items():
        elements = int(name.rsplit(" ", 1)[1])
        before = baseline.get(name)
        ratio = f"{count / before:8.3f}" if before else "     new"
        # A handful of instructions more in a small call is no finding: compilers differ by that.
        if before and count > before * (1 + tolerance) + 8:
            above.append(name)
            ratio += "  ABOVE"
        lines.append(f"{name:44}{count:14,}{count / elements:13.2f}{before or 0:12,}{ratio}")
    return "\n".join(lines), above


def main() -> int:
    """Count, compare, print."""
    parser = argparse.ArgumentParser(description="Instruction counts of the tensor kernels, by callgrind.")
    parser.add_argument("--program", type=Path, required=True, help="the built luff_kernel_count")
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="allowed growth, as a share (default: 0.05)"
    )
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE.name} instead of comparing")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None or not arguments.program.exists():
        print(f"needed: valgrind, and the program {arguments.program}", file=sys.stderr)
        return 2
    try:
        counts = measure(arguments.program)
    except CannotMeasureError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.update:
        BASELINE.write_text(json.dumps({"target": "AVX2", "instructions": counts}, indent=1) + "\n")
    baseline = json.loads(BASELINE.read_text())["instructions"] if BASELINE.exists() else {}
    table, above = report(counts, baseline, arguments.tolerance)
    print(table)
    if arguments.json:
        result = {"results": counts, "above_baseline": above, "tolerance": arguments.tolerance}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if above:
        print(f"{len(above)} of {len(counts)} counts are above the baseline", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
