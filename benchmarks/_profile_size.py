"""What records of time take on the disk, and what reading a million steps of them costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import Measured, gate, luff_command, say

_PHASES = ("data_wait", "zero_grad", "forward", "loss", "backward", "optimizer")
_STEPS_A_SECOND = 100
_HOUR_S = 3600


def _exact(value: float) -> Measured:
    return Measured(value, value, value)


def _bytes(run: Path) -> int:
    return sum(file.stat().st_size for file in run.rglob("*") if file.is_file())


def _grown(profile: str, seconds: float) -> tuple[int, int]:
    """Trains a hundred steps a second; returns by how many bytes the run grew after five seconds, and steps."""
    import luff
    import luff.numpy

    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    run = folder / "run"
    try:
        hook = luff.numpy.attach({}, run=str(run), profile=profile)
        began, steps, first, first_steps = time.monotonic(), 0, 0, 0
        while time.monotonic() - began < seconds + 5:
            with hook.step():
                for name in _PHASES:
                    with luff.phase(name):
                        pass
            steps += 1
            if not first and time.monotonic() - began >= 5:
                hook.flush(10.0)
                first, first_steps = _bytes(run), steps
            time.sleep(max(began + steps / _STEPS_A_SECOND - time.monotonic(), 0))
        hook.flush(10.0)
        grown = _bytes(run) - first
        hook.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return grown, steps - first_steps


def disk(seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures what a training takes with `profile` on, the sampler included, and off."""
    os.environ["LUFF_EXECUTABLE"] = luff_command()
    each: list[float] = []
    for profile in ("basic", "off"):
        grown, steps = _grown(profile, seconds)
        each.append(grown / steps)
    whole, added = (one * _STEPS_A_SECOND * _HOUR_S / 1e6 for one in (each[0], each[0] - each[1]))
    print(
        f"disk at {_STEPS_A_SECOND} steps a second: {added:.1f} MB an hour more than without, {whole:.1f} in all; "
        f"{each[0]:.0f} bytes a step of {len(_PHASES)} phases, {each[1]:.0f} without"
    )
    held = gate("disk: MB an hour", _exact(added), 100)
    print(f"  {say(held['ok'])}")
    return [{"part": "disk", "mb_an_hour": added, "all_mb_an_hour": whole, "bytes_a_step": each}], [held]


# The kernel counts what a process held before it became another program, and that is its parent's memory. So a parent
# as small as can be starts what is measured.
_STARTER = """
import os, sys, time
began = time.monotonic()
nothing = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=nothing)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss)
"""


def _measured(words: list[str]) -> tuple[float, float, float]:
    """Runs a command; returns its CPU time and its time in seconds, and its memory at the most in MB."""
    starter = [sys.executable, "-I", "-S", "-c", _STARTER]
    done = subprocess.run([*starter, *words], stdout=subprocess.PIPE, text=True, check=True)
    code, cpu_s, wall_s, kilobytes = map(float, done.stdout.split())
    if code != 0:
        raise SystemExit(f"{' '.join(words)} failed: exit code {code:.0f}")
    return cpu_s, wall_s, kilobytes * 1024 / 1e6


def _make(run: Path, steps: int) -> None:
    """Makes a run of so many steps with six phases each."""
    from luff import _core
    from luff._codes import EndReason, Mode, Phase

    numbers = [int(Phase[name.upper()]) for name in _PHASES]
    session = _core.Session.open(str(run), config_json="{}")
    train = int(Mode.TRAIN)
    for step in range(steps):
        session.begin_step(train, step)
        for number in numbers:
            _core.enter_phase(number)
            _core.leave_phase(number)
        session.end_step(train, step, step, step)
        if step % 256 == 0:
            session.flush(60.0)  # else steps would be dropped
    session.flush(60.0)
    dropped = session.health()["counters"]["dropped_steps"]
    session.close(int(EndReason.COMPLETED), 60.0)
    if dropped:
        raise SystemExit(f"{dropped} of {steps} steps were dropped: the run is smaller than it should be")


def large(steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures `luff profile` and the export to Perfetto of a run of so many steps, and of one of a quarter of them; of
    the former its report, too.
    """
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    memory: dict[str, list[float]] = {}
    try:
        for size in (steps // 4, steps):
            run = folder / f"run-{size}"
            _make(run, size)
            for name, words, cpu_limit, memory_limit in (
                ("profile", ["profile", str(run)], 2, 200),
                (
                    "export to perfetto",
                    ["export", str(run), f"{run}.trace", "--to", "perfetto", "--force"],
                    10,
                    200,
                ),
            ):
                # The least of three: how much of the program's file is in memory differs by megabytes.
                cpu_s, wall_s, megabytes = map(
                    min, zip(*(_measured([luff_command(), *words]) for _ in range(3)), strict=True)
                )
                print(
                    f"luff {name}, {size} steps: {cpu_s:.2f} s of CPU time, {wall_s:.2f} s, at most {megabytes:.0f} MB"
                )
                results.append(
                    {"part": "large", "what": name, "steps": size, "cpu_s": cpu_s, "mb": megabytes}
                )
                memory.setdefault(name, []).append(megabytes)
                if size == steps:
                    gates.append(gate(f"luff {name}: s", _exact(cpu_s), cpu_limit))
                    gates.append(gate(f"luff {name}: MB", _exact(megabytes), memory_limit))
            if size == steps:
                file = folder / "report.html"
                cpu_s, _, _ = _measured([luff_command(), "report", str(run), "-o", str(file)])
                megabytes = file.stat().st_size / 1e6
                print(f"luff report, {size} steps: {megabytes:.2f} MB, {cpu_s:.2f} s of CPU time")
                results.append(
                    {"part": "large", "what": "report", "steps": size, "cpu_s": cpu_s, "mb": megabytes}
                )
                gates.append(gate("luff report: MB", _exact(megabytes), 3))
            shutil.rmtree(run)
        small, whole = memory["export to perfetto"]
        print(
            f"luff export to perfetto: {whole / small:.2f} times the memory for four times the steps, "
            f"{1e6 * (whole - small) / (steps - steps // 4):.0f} bytes a step"
        )
        gates.append(
            gate("luff export to perfetto: memory of four times the steps", _exact(whole / small), 1.1)
        )
        print(f"  {', '.join(say(one['ok']) for one in gates)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results, gates
