"""Counts bytecodes, calls and instructions of a step at which nothing is due: `./dev bench idle`.

Counts do not depend on the load of the machine, so a regression shows even on a busy one. A model with one child,
attached with collections that take nothing, is compared with the same model alone: by bytecodes and calls of the
interpreter, and with callgrind by the instructions of a step with ten module calls: of the training's thread, which
differ by nothing from run to run, and of all threads, which differ by about 1 %, as Luff's own take together what
comes while they sleep. Callgrind counts only after the loop is warm, so that importing torch takes just seconds;
without valgrind this part is skipped.

    ./dev bench idle [--update] [--no-instructions] [--json FILE]

Exit code: 0 within the tolerance of the baseline, 1 above it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from _gates import finish, say

from capture import WG, Tiny

BASELINE = Path(__file__).parent / "baselines" / "idle.json"
STEPS, CALLS = 32, 100  # steps: the hook makes some of its checks at every 16th only
WARM = 272  # it makes them at each of the first 64, and looks again at powers of two, such as 256
TRACES, TRACED_STEPS = 4, 3  # of a child that makes traces before its steps are counted


def count(region: Callable[[], object]) -> tuple[int, int]:
    """Returns the number of bytecodes, and of calls of Python and C functions, while `region` runs."""
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


def attached(tiny: Tiny, optimizer: torch.optim.Optimizer, folder: str) -> Any:
    """Attaches a hook that takes nothing."""
    import luff.torch

    never: list[Any] = [{"name": name, "forms": []} for name in (*WG, "losses")]
    return luff.torch.attach(tiny, optimizer, run=f"{folder}/run", collections=never)


def counted_child(kind: str, folder: str) -> None:
    """Runs in the process that callgrind watches: warm-up steps, then counted ones.

    `kind`: "bare", "attached", or "traced", which makes traces in the last steps that warm up.
    """
    torch.set_num_threads(1)
    tiny = Tiny()
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.0)
    hook = attached(tiny, optimizer, folder) if kind != "bare" else None

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            tiny(torch.ones(1), 10).sum().backward()
            optimizer.step()

    def instrument(state: str) -> None:
        command = ["callgrind_control", "-i", state, str(os.getpid())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    steps(WARM)
    for _ in range(TRACES):
        if kind == "traced" and (why := hook.trace(TRACED_STEPS)):
            raise SystemExit(f"no trace: {why}")
        steps(TRACED_STEPS + 1)
    steps(16)  # what the first steps after a trace do, others do not
    instrument("on")
    steps(STEPS)
    instrument("off")
    if hook is not None:
        hook.close()


def instructions(kind: str) -> tuple[float, float]:
    """Returns the instructions of one step with ten module calls: of the training's thread, and of all.

    `kind`: as `counted_child` takes it.
    """
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
    # A file for each process: the hook starts others.
    command = [*tool, f"--callgrind-out-file={folder}/counts.%p", sys.executable, __file__]
    command += ["--child", str(folder), "--kind", kind]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            said = process.communicate()[1]
        found = {
            file.suffix: int(re.findall(r"^totals: (\d+)", file.read_text(), re.MULTILINE)[-1])
            for file in folder.glob(f"counts.{process.pid}-*")
        }
        traces = len(list(folder.glob("run/w0000/traces/*.json")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    threads = [count for _, count in sorted(found.items())]  # the first is the one that trains
    if process.returncode != 0 or not threads or not threads[0]:
        raise SystemExit(f"callgrind gave no count: {said[-500:]}")
    assert traces == (TRACES if kind == "traced" else 0), (kind, traces, said)
    return threads[0] / STEPS, sum(threads) / STEPS


def measure(attach: bool) -> dict[str, tuple[float, float]]:
    """Returns the counts of one step without child calls, and of one child call."""
    tiny = Tiny()
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.0)
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    hook: Any = None
    if attach:
        hook = attached(tiny, optimizer, folder)

    def step(calls: int) -> None:
        optimizer.zero_grad()
        tiny(torch.ones(1), calls).sum().backward()
        optimizer.step()

    def steps(calls: int) -> None:
        for _ in range(STEPS):
            step(calls)

    try:
        for calls in (*[0] * WARM, CALLS, 0):
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
    """Counts, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tolerance", type=float, default=0.02, help="allowed growth, as a share")
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE.name} instead of comparing")
    parser.add_argument(
        "--no-instructions", action="store_true", help="without callgrind, which takes a minute"
    )
    parser.add_argument("--json", type=Path, help="file for results and gates")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        counted_child(arguments.kind, arguments.child)
        return 0
    bare, own = measure(False), measure(True)
    counts: dict[str, float] = {}
    for name in bare:
        for kind, without, with_ in zip(("bytecodes", "calls"), bare[name], own[name], strict=True):
            counts[f"{name}/{kind}"] = round(with_ - without, 2)
    if arguments.no_instructions:
        print("instructions skipped: --no-instructions given")
    elif shutil.which("valgrind") is None:
        print("instructions skipped: valgrind is not installed")
    else:
        both = zip(instructions("attached"), instructions("bare"), strict=True)
        own_thread, all_threads = (round(with_ - without) for with_, without in both)
        counts["step of ten module calls/instructions of its thread"] = own_thread
        counts["step of ten module calls/instructions"] = all_threads
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if arguments.update:
        baseline |= counts
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n", encoding="utf-8")
    gates = []
    for name, value in counts.items():
        before = baseline.get(name)
        limit = value if before is None else round(before * (1 + arguments.tolerance) + 0.5, 2)
        gates.append({"name": f"idle/{name}", "value": value, "limit": limit, "ok": value <= limit})
        state = "new" if before is None else f"baseline {before:g}"
        print(f"idle {name:<54} +{value:<9g} {state:<18} {say(value <= limit)}")
    return finish([{"row": "idle_counts", **counts}], gates, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
