"""Reading a run of a million records: ./dev bench read [--json FILE].

The run has 100 tensors and 10,000 steps; each record is a summary and a value of 1 KiB. luff_bench_store writes it,
and the files are in the page cache. Each gate is the best of five. The same limits are goals for data that was never
read before in its trial, by the best of five rounds (a round of value() reads 1,000 different steps of a newly opened
trial, a round of summaries() is the median of 20 tensors). The cost of reading from the disk is printed too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from _gates import finish, gate_of_best, say

TENSORS, STEPS, FLOATS, REPEATS = 100, 10_000, 256, 5


def program(name: str) -> Path:
    """Returns a program of benchmarks/cpp, from the build that `./dev bench` names or else the newest that has it."""
    if folder := os.environ.get("LUFF_BENCH_PROGRAMS"):
        return Path(folder, name)
    root = Path(os.environ.get("LUFF_BENCH_ROOT", Path(__file__).parents[1]))
    found = sorted(root.glob(f"build/*/benchmarks/cpp/{name}"), key=lambda p: p.stat().st_mtime)
    if not found:
        sys.exit(f"{name} is not built: ./dev build")
    return found[-1]


def resident() -> int:
    """Returns the resident memory of this process in bytes, including mapped files."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def best(action: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Returns the shortest time of `action(i)` in seconds."""
    times = []
    for i in range(repeats):
        begun = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - begun)
    return min(times)


def each(calls: Iterable[Callable[[], object]]) -> list[float]:
    """Returns the seconds of each call."""
    times = []
    for call in calls:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def cache(run: str, wanted: bool) -> None:
    """Loads the payload of a run into the page cache, or evicts it."""
    for path in Path(run).glob("w*/*.lfd"):
        with path.open("rb") as file:
            if wanted:
                while file.read(8 << 20):
                    pass
            else:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def value_us(run: str) -> dict[str, float]:
    """Times value() for steps that were never read, for the same steps again, and from the disk."""
    import luff

    def thousand(tensor: Any, steps: range) -> float:
        value = tensor.value
        begun = time.perf_counter()
        for step in steps:
            value(step)
        return (time.perf_counter() - begun) / len(steps) * 1e6

    cache(run, True)
    first, again = [], []
    for i in range(REPEATS):
        tensor = luff.open_trial(run).tensor(f"layer{i}.weight")
        tensor.value(0)
        steps = range(5 + i, STEPS, STEPS // 1000)  # spread over the whole run
        first.append(thousand(tensor, steps))
        again += [thousand(tensor, steps) for _ in range(REPEATS)]
    cache(run, False)
    tensor = luff.open_trial(run).tensor("layer50.weight")
    disk = thousand(tensor, range(7, STEPS, STEPS // 200))
    cache(run, True)
    return {
        "value() of steps never read, us": min(first),
        "value() of the same steps again, us": min(again),
        "value() from the disk, us": disk,
    }


def values_ms(run: str) -> dict[str, float]:
    """Times values() for tensors never read, each in a newly opened trial, and repeatedly for one tensor."""
    import luff

    first = []
    for i in range(REPEATS):
        tensor = luff.open_trial(run).tensor(f"layer{60 + i}.weight")
        tensor.value(0)
        first += each([tensor.values])
    return {
        "values() of 10,000 steps never read, ms": min(first) * 1e3,
        "values() of the same tensor again, ms": min(each([tensor.values] * REPEATS)) * 1e3,
    }


def summaries_us(run: str) -> dict[str, float]:
    """Times summaries() for tensors never read, and for the last one again."""
    import luff

    rounds, again, opening = [], [], []
    for _ in range(REPEATS):
        trial = luff.open_trial(run)
        tensors = [trial.tensor(f"layer{i}.weight") for i in range(21)]
        opening += each([tensors[0].summaries])
        rounds.append(statistics.median(each(t.summaries for t in tensors[1:])))
        again += each([tensors[-1].summaries] * 5)
    return {
        "summaries() of tensors never read, us": min(rounds) * 1e6,
        "summaries() of the same tensor again, us": min(again) * 1e6,
        "summaries(), the first of a trial, us": min(opening) * 1e6,
    }


def delay_ms(live: str, tool: Path) -> float:
    """Returns the median time from the end of a step until a waiting reader sees it."""
    import luff

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
    return statistics.median(delays)


def measure(run: str, live: str, tool: Path) -> dict[str, float]:
    """Returns all figures."""
    import luff

    results: dict[str, float] = {}

    def first_value(i: int) -> object:
        return luff.open_trial(run).tensor(f"layer{i}.weight").value(5000)

    results["first value, ms"] = best(first_value) * 1e3
    before = resident()
    trial = luff.open_trial(run)
    trial.tensor("layer1.weight").value(17)
    results["memory after opening, bytes per record"] = (resident() - before) / (TENSORS * STEPS)
    results |= value_us(run)
    results |= values_ms(run)
    results |= summaries_us(run)
    results["refresh with nothing new, us"] = best(lambda i: [trial.refresh() for _ in range(1000)]) * 1e3
    # Here the writer runs at the same time as the reader. The best of five runs counts, as for the other figures.
    results["end of step to visible, p50, ms"] = min(delay_ms(f"{live}{i}", tool) for i in range(REPEATS))
    return results


LIMITS = {
    "first value, ms": 10.0,
    "memory after opening, bytes per record": 100.0,
    "value() of the same steps again, us": 3.0,
    "values() of the same tensor again, ms": 10.0,
    "summaries() of the same tensor again, us": 100.0,
    "refresh with nothing new, us": 20.0,
    "end of step to visible, p50, ms": 5.0,
}
GOALS = {
    "value() of steps never read, us": 3.0,
    "values() of 10,000 steps never read, ms": 10.0,
    "summaries() of tensors never read, us": 100.0,
}


def main() -> int:
    """Run, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        run = f"{folder}/run"
        tool = program("luff_bench_store")
        subprocess.run(
            [tool, run, str(TENSORS), str(STEPS), str(FLOATS)], check=True, stdout=subprocess.DEVNULL
        )
        results = measure(run, f"{folder}/live", tool)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    gates = {name: gate_of_best(f"read/{name}", [results[name]], limit) for name, limit in LIMITS.items()}
    for name, value in results.items():
        text = ""
        if name in gates:
            text = f"<= {LIMITS[name]:<5g} {say(gates[name]['ok'])}"
        elif name in GOALS:
            text = f"<= {GOALS[name]:<5g} goal {'met' if value <= GOALS[name] else 'missed'}"
        print(f"{name:<42} {value:>10.3f}  {text}")
    return finish([{"row": "read", **results}], list(gates.values()), args.json)


if __name__ == "__main__":
    sys.exit(main())
