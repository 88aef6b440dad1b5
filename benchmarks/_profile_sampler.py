"""The sampler of a machine beside psutil: CPU time and memory, at the pace at which a run has it.

In each interval three take turns within each half second, so that none finds in the processor's caches what another
one has just read: the sampler itself; psutil; and bare reads of the sampler's files, which do nothing with what they
read. What those take beyond as many reads of /dev/null is the kernel's work, which whoever wants these figures pays.

psutil gets the same figures as the sampler, as often (`Source::kCounters`, `kSlow`): of cores, the process and its
children at each sample; memory, disks, network, the process's input and output, and who its children are once a second;
swap, temperatures and frequencies every five seconds. Its documented calls are used, a process's within `oneshot()`.
Figures that psutil has no call for (pressure, control groups, run queues) it would have to read from the same files
with Python; a second peer does. Of a third, all of psutil's calls are made at each sample, as monitors usually do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _gates import Measured, gate, luff_command, measured, say

HZ = 2
_COUNTERS, _SLOW = 2, 10  # samples, as in src/profile/sampler/source.h
# Children stand for workers of a loader: they sleep most of the time.
_CHILD = "import time\nwhile True: time.sleep(0.05)"


def _cpu_of(pid: int) -> float:
    """Returns the CPU time of a process: from schedstat, in nanoseconds, where ticks would be too coarse."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9


def _memory_of(pid: int) -> float:
    """Returns the bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * float(os.sysconf("SC_PAGESIZE"))


def _every(path: str) -> int:
    """Returns how many samples lie between two in which the sampler reads a file."""
    name = path.rsplit("/", 1)[-1]
    if path == "/proc/stat" or (name == "stat" and path.startswith("/proc/")):
        return 1
    if (
        name in ("vmstat", "snmp", "statm", "children")
        or "/task/" in path
        or "limit" in name
        or "oom" in name
    ):
        return _SLOW
    return _COUNTERS


def _files(pid: int) -> dict[str, int]:
    """Returns the files that the sampler keeps open to read them again, and in how many samples one has its turn."""
    found: dict[str, int] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        path = str(link.readlink())
        if path.startswith(("/proc/", "/sys/")):
            found[path] = _every(path)
    return found


class _Bare:
    """Reads the sampler's files, or nothing as often."""

    def __init__(self, files: dict[str, int], nothing: bool = False) -> None:
        self._open = [
            (os.open(os.devnull if nothing else path, os.O_RDONLY), every) for path, every in files.items()
        ]
        self._into = [bytearray(16384)]

    def __call__(self, tick: int) -> None:
        for file, every in self._open:
            if tick % every == 0:
                os.preadv(file, self._into, 0)

    def close(self) -> None:
        for file, _ in self._open:
            os.close(file)


class _Psutil:
    """Asks psutil for what the sampler reads; `files`: those that it has no call for, read with Python."""

    def __init__(self, files: dict[str, int], always: bool = False) -> None:
        import psutil

        self._psutil = psutil
        self._me = psutil.Process()
        self._files, self._always = files, always
        self._children = self._me.children(recursive=True)

    def _of_process(self, one: Any, counters: bool) -> None:
        with one.oneshot():
            one.cpu_times()
            one.memory_info()
            one.status()
            if one is self._me:
                one.num_threads()
                if counters:
                    one.io_counters()

    def __call__(self, tick: int) -> None:
        counters, slow = (self._always or tick % every == 0 for every in (_COUNTERS, _SLOW))
        psutil = self._psutil
        psutil.cpu_times(percpu=True)
        psutil.cpu_stats()
        if counters:
            psutil.virtual_memory()
            psutil.disk_io_counters(perdisk=True)
            psutil.net_io_counters(pernic=True)
            self._children = self._me.children(recursive=True)
        if slow:
            psutil.swap_memory()
            psutil.sensors_temperatures()
            psutil.cpu_freq()
        for one in (self._me, *self._children):
            self._of_process(one, counters)
        for path, every in self._files.items():
            if tick % every == 0:
                Path(path).read_bytes().split()


def _without_call(files: dict[str, int]) -> dict[str, int]:
    """Returns those files of which psutil shows nothing."""
    return {
        path: every
        for path, every in files.items()
        if "pressure" in path or "/cgroup/" in path or path.endswith(("/schedstat", "/snmp"))
    }


def _spent(sample: Callable[[int], None], tick: int) -> float:
    before = time.thread_time()
    sample(tick)
    return time.thread_time() - before


def sampler(pairs: int = 8, ticks: int = 10) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures the sampler beside psutil."""
    import luff.numpy
    import numpy as np

    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    children = [subprocess.Popen([sys.executable, "-c", _CHILD]) for _ in range(4)]
    spent: dict[str, list[float]] = {
        "luff": [],
        "psutil": [],
        "psutil and files": [],
        "psutil, all": [],
        "reads": [],
        "calls": [],
    }
    process = None
    try:
        run = folder / "run"
        hook = luff.numpy.attach({"w": np.ones(4, np.float32)}, run=str(run), profile="off")
        with hook.step() as step:
            step.loss(1.0)
        hook.flush(10.0)
        words = [luff_command(), "_sample", "--hz", str(HZ), "--", str(run)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        time.sleep(12)  # what is done once: opening files, definitions, the first look at everything
        files = _files(process.pid)
        bare, calls = _Bare(files), _Bare(files, nothing=True)
        others: dict[str, Callable[[int], None]] = {
            "psutil": _Psutil({}),
            "reads": bare,
            "psutil and files": _Psutil(_without_call(files)),
            "psutil, all": _Psutil({}, always=True),
            "calls": calls,
        }
        for sample in others.values():
            sample(0)
        tick = 0
        for _ in range(pairs):
            before, began = _cpu_of(process.pid), time.monotonic()
            sums = dict.fromkeys(others, 0.0)
            for _ in range(ticks):
                tick += 1
                for name, sample in others.items():
                    time.sleep(1 / HZ / len(others))
                    sums[name] += _spent(sample, tick)
            passed = (time.monotonic() - began) * HZ
            spent["luff"].append((_cpu_of(process.pid) - before) / passed)
            for name, seconds in sums.items():
                spent[name].append(seconds / ticks)
        memory = _memory_of(process.pid)
        bare.close()
        calls.close()
        hook.close()
    finally:
        for one in (process, *children):
            if one is not None:
                one.kill()
                one.wait()
        shutil.rmtree(folder, ignore_errors=True)
    share = measured([HZ * one for one in spent["luff"]])
    kernel = [reads - calls for reads, calls in zip(spent["reads"], spent["calls"], strict=True)]
    bound = measured(
        [theirs / least for theirs, least in zip(spent["psutil and files"], kernel, strict=True)]
    )
    print(
        f"sampler: {1e6 * share.median / HZ:.0f} us a sample, {100 * share.median:.3f} % of a core, "
        f"{memory / 1e6:.1f} MB; bare reads of its {len(files)} files {1e6 * measured(spent['reads']).median:.0f} us, "
        f"without their calls {1e6 * measured(kernel).median:.0f}"
    )
    for name in ("psutil", "psutil and files", "psutil, all"):  # no gate: ADR 0079
        ratios = [theirs / ours for theirs, ours in zip(spent[name], spent["luff"], strict=True)]
        one = measured(ratios)
        print(
            f"  {name}: {1e6 * measured(spent[name]).median:.0f} us, {one.median:.1f} times as much "
            f"[{one.low:.1f}, {one.high:.1f}]"
        )
    print(
        "  psutil and files over the kernel's work on the sampler's files, which no sampler of them can exceed: "
        f"{bound.median:.1f} times [{bound.low:.1f}, {bound.high:.1f}]"
    )
    gates = [
        gate("sampler: share of a core", share, 0.002),
        gate("sampler: memory in MB", Measured(memory / 1e6, memory / 1e6, memory / 1e6), 20),
    ]
    print(f"  {', '.join(say(one['ok']) for one in gates)}")
    result = {
        "part": "sampler",
        "us": {name: [1e6 * one for one in values] for name, values in spent.items()},
        "bound": bound.median,
        "rss": memory,
    }
    return [result], gates
