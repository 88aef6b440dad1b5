"""The idle path in bytecodes and calls: what a step and a module call cost when nothing is due (`./dev bench idle`).

Counts do not depend on what else the machine does, so that a regression shows on a busy one. (Callgrind needs minutes
to import torch, and counts of an interpreter say less than this.) A model with one child, attached with collections
that take nothing, is compared with the same model alone.

    ./dev bench idle [--update] [--json FILE]

Exit code: 0 within the tolerance of the baseline, 1 above it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from capture import WG, Tiny

BASELINE = Path(__file__).parent / "baselines" / "idle.json"
STEPS, CALLS = 20, 100


def count(region: Callable[[], object]) -> tuple[int, int]:
    """Bytecodes, and calls of Python and C functions, while `region` runs."""
    bytecodes = calls = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal bytecodes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        bytecodes += event == "opcode"
        return trace

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.settrace(trace)
    region()
    sys.settrace(None)
    sys.setprofile(profile)
    region()
    sys.setprofile(None)
    return bytecodes, calls


def measure(attach: bool) -> dict[str, tuple[float, float]]:
    """Counts of one step without child calls, and of one child call."""
    tiny = Tiny()
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.0)
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    hook: Any = None
    if attach:
        import luff.torch

        never: list[Any] = [{"name": name, "forms": []} for name in (*WG, "losses")]
        hook = luff.torch.attach(tiny, optimizer, run=f"{folder}/run", collections=never)

    def step(calls: int) -> None:
        optimizer.zero_grad()
        tiny(torch.ones(1), calls).sum().backward()
        optimizer.step()

    def steps(calls: int) -> None:
        for _ in range(STEPS):
            step(calls)

    try:
        for calls in (0, CALLS, 0):
            step(calls)
        fixed = count(lambda: steps(0))
        many = count(lambda: steps(CALLS))
    finally:
        if hook is not None:
            hook.close()
        shutil.rmtree(folder, ignore_errors=True)
    per_call = [(m - f) / (STEPS * CALLS) for f, m in zip(fixed, many, strict=True)]
    return {"step": (fixed[0] / STEPS, fixed[1] / STEPS), "module call": (per_call[0], per_call[1])}


def main() -> int:
    """Counts, compares, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tolerance", type=float, default=0.05, help="allowed growth, as a share")
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE.name} instead of comparing")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    arguments = parser.parse_args()
    bare, own = measure(False), measure(True)
    counts: dict[str, float] = {}
    for name in bare:
        for kind, without, with_ in zip(("bytecodes", "calls"), bare[name], own[name], strict=True):
            counts[f"{name}/{kind}"] = round(with_ - without, 2)
    if arguments.update:
        BASELINE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    gates = []
    for name, value in counts.items():
        before = baseline.get(name)
        limit = value if before is None else round(before * (1 + arguments.tolerance) + 0.5, 2)
        gates.append({"name": f"idle/{name}", "value": value, "limit": limit, "ok": value <= limit})
        state = "new" if before is None else f"baseline {before:g}"
        print(f"idle {name:<22} +{value:<9g} {state:<18} {'ok' if value <= limit else 'ABOVE'}")
    if arguments.json:
        content = {"results": [{"row": "idle_counts", **counts}], "gates": gates}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = [g["name"] for g in gates if not g["ok"]]
    print(f"{len(gates)} gates, {len(failed)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
