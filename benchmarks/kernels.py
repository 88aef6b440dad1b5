"""Instruction counts of the tensor kernels, by callgrind: ./dev bench kernels [--update] [--json FILE].

Counts do not depend on the load of the machine, so a change of a few per cent shows even on a busy one. Valgrind
does not support AVX-512; the kernels are counted for AVX2.

Exit code: 0 if every count is within the tolerance of the baseline, 1 if one is above it. If it cannot measure (no
valgrind, no AVX2), it says so, and has no gates.
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

from _gates import finish
from read import program

BASELINE = Path(__file__).parent / "baselines" / "kernels.json"
SIZES = (16, 65536)  # elements: for the cost of a call, and for the cost of an element
REGION = "LuffCountedRegion"
SLACK = 8  # more instructions allowed in a small call, since compilers differ


class CannotMeasureError(Exception):
    """A tool or CPU feature that counting needs is missing."""


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
        if before and count > before * (1 + tolerance) + SLACK:
            above.append(name)
            ratio += "  ABOVE"
        lines.append(f"{name:44}{count:14,}{count / elements:13.2f}{before or 0:12,}{ratio}")
    return "\n".join(lines), above


def main() -> int:
    """Count, compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, help="another luff_kernel_count than the one built last")
    parser.add_argument("--tolerance", type=float, default=0.05, help="allowed growth, as a share")
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE.name} instead of comparing")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    arguments = parser.parse_args()
    try:
        if shutil.which("valgrind") is None:
            raise CannotMeasureError("valgrind is not installed")
        counts = measure(arguments.program or program("luff_kernel_count"))
    except CannotMeasureError as error:
        print(f"instructions skipped: {error}")
        return finish([{"row": "kernels", "skipped": str(error)}], [], arguments.json)
    if arguments.update:
        BASELINE.write_text(json.dumps({"target": "AVX2", "instructions": counts}, indent=1) + "\n")
    baseline = json.loads(BASELINE.read_text())["instructions"] if BASELINE.exists() else {}
    table, above = report(counts, baseline, arguments.tolerance)
    print(table)
    gates = [
        {
            "name": f"kernels/{name}",
            "value": count,
            "limit": round(baseline.get(name, count) * (1 + arguments.tolerance) + SLACK),
            "ok": name not in above,
        }
        for name, count in counts.items()
    ]
    return finish([{"row": "kernels", **counts}], gates, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
