"""Reading a run of a million records: ./dev bench read [--json FILE].

100 tensors, 10,000 steps, each record a summary and a value of 1 KiB, written by luff_bench_store. Best of 5.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TENSORS, STEPS, FLOATS, REPEATS = 100, 10_000, 256, 5


def generator() -> Path:
    """The program that writes runs: of the newest build that has one."""
    root = Path(os.environ.get("LUFF_BENCH_ROOT", Path(__file__).parents[1]))
    found = sorted(root.glob("build/*/benchmarks/cpp/luff_bench_store"), key=lambda p: p.stat().st_mtime)
    if not found:
        sys.exit("luff_bench_store is not built: ./dev build")
    return found[-1]


def resident() -> int:
    """Resident memory of this process in bytes, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def best(action: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Shortest time of `action(i)` in seconds."""
    times = []
    for i in range(repeats):
        begun = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - begun)
    return min(times)


def measure(run: str, live: str, tool: Path) -> dict[str, float]:
    """All figures."""
    import luff

    results: dict[str, float] = {}

    def first_value(i: int) -> object:
        return luff.open_trial(run).tensor(f"layer{i}.weight").value(5000)

    results["first value, ms"] = best(first_value) * 1e3
    before = resident()
    trial = luff.open_trial(run)
    trial.tensor("layer1.weight").value(17)
    results["memory after opening, bytes per record"] = (resident() - before) / (TENSORS * STEPS)
    tensor = trial.tensor("layer2.weight")

    def thousand(_: int) -> None:  # the first of the five reads the disk: the writer bypassed the page cache
        value = tensor.value
        for step in range(1000):
            value(step)

    results["value(), us"] = best(thousand) * 1e3
    results["values() of 10,000 steps of 1 KiB, ms"] = best(lambda i: tensor.values()) * 1e3
    # Gated as the other figures, best of five calls: the later ones find the columns of the first in the trial's cache.
    results["summaries() of 10,000 steps, us"] = (
        best(lambda i: trial.tensor("layer20.weight").summaries()) * 1e6
    )
    fresh = best(lambda i: trial.tensor(f"layer{30 + i}.weight").summaries())
    results["summaries() of a tensor never read, us"] = fresh * 1e6
    results["refresh with nothing new, us"] = best(lambda i: [trial.refresh() for _ in range(1000)]) * 1e3

    writer = subprocess.Popen([tool, live, "10", "300", "16", "--pace-us", "5000"], stdout=subprocess.DEVNULL)
    while not Path(live, "run.json").exists():
        time.sleep(0.001)
    watched = luff.open_trial(live, wait_s=10)
    delays = []
    seen = watched.steps()[-1] if watched.steps() else -1
    while not watched.loaded_all_steps:
        watched.wait_for_news(1)
        now = time.time_ns()
        steps = watched.steps()
        if steps and steps[-1] != seen:
            seen = steps[-1]
            delays.append((now - watched.step_info(seen)["wall_unix_ns"]) * 1e-6)
    writer.wait()
    results["end of step to visible, p50, ms"] = statistics.median(delays)
    return results


LIMITS = {
    "first value, ms": 10.0,
    "memory after opening, bytes per record": 100.0,
    "value(), us": 3.0,
    "values() of 10,000 steps of 1 KiB, ms": 10.0,
    "summaries() of 10,000 steps, us": 100.0,
    "refresh with nothing new, us": 20.0,
    "end of step to visible, p50, ms": 5.0,
}


def main() -> int:
    """Run, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        run = f"{folder}/run"
        tool = generator()
        subprocess.run(
            [tool, run, str(TENSORS), str(STEPS), str(FLOATS)], check=True, stdout=subprocess.DEVNULL
        )
        results = measure(run, f"{folder}/live", tool)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    gates = [
        {"name": name, "value": results[name], "limit": limit, "ok": results[name] <= limit}
        for name, limit in LIMITS.items()
    ]
    for name, value in results.items():
        limit = LIMITS.get(name)
        verdict = "" if limit is None else ("ok" if value <= limit else "MISSED")
        print(f"{name:<42} {value:>10.3f}  {'' if limit is None else f'<= {limit:g}':<8} {verdict}")
    if args.json:
        args.json.write_text(json.dumps({"results": results, "gates": gates}, indent=2) + "\n")
    return 0 if all(g["ok"] for g in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
