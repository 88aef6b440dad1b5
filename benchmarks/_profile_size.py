"""What records of time take on the disk, and what reading a million steps of them costs."""

from __future__ import annotations

import os
import shutil
import subprocess
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


def disk(seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures a training of a hundred steps a second, with the sampler, after its first ten seconds."""
    import luff
    import luff.numpy

    os.environ["LUFF_EXECUTABLE"] = luff_command()
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    run = folder / "run"
    try:
        hook = luff.numpy.attach({}, run=str(run))
        began, steps, first, first_steps = time.monotonic(), 0, 0, 0
        while time.monotonic() - began < seconds + 10:
            with hook.step():
                for name in _PHASES:
                    with luff.phase(name):
                        pass
            steps += 1
            if not first and time.monotonic() - began >= 10:
                hook.flush(10.0)
                first, first_steps = _bytes(run), steps
            time.sleep(max(began + steps / _STEPS_A_SECOND - time.monotonic(), 0))
        hook.flush(10.0)
        grown, counted = _bytes(run) - first, steps - first_steps
        hook.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    hour = grown / seconds * _HOUR_S / 1e6
    print(
        f"disk: {hour:.1f} MB an hour at {counted / seconds:.0f} steps a second, {grown / counted:.0f} bytes a step "
        f"of {len(_PHASES)} phases, samples of the machine included"
    )
    held = gate("disk: MB an hour", _exact(hour), 100)
    print(f"  {say(held['ok'])}")
    return [{"part": "disk", "mb_an_hour": hour, "bytes_a_step": grown / counted}], [held]


def _measured(words: list[str]) -> tuple[float, float, float]:
    """Runs a command; returns its CPU time and its time in seconds, and its memory at the most in MB."""
    began = time.monotonic()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed: exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss * 1024 / 1e6


def large(steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures `luff profile` and the exports of a run of so many steps."""
    from luff import _core
    from luff._codes import EndReason, Mode, Phase

    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    run = folder / "run"
    numbers = [int(Phase[name.upper()]) for name in _PHASES]
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    try:
        session = _core.Session.open(str(run), config_json="{}")
        train = int(Mode.TRAIN)
        for step in range(steps):
            session.begin_step(train, step)
            for number in numbers:
                _core.enter_phase(number)
                _core.leave_phase(number)
            session.end_step(train, step, step, step)
            if step % 4096 == 0:
                session.flush(60.0)
        session.close(int(EndReason.COMPLETED), 60.0)
        for name, words, cpu_limit, memory_limit in (
            ("profile", ["profile", str(run)], 2, 200),
            ("export to perfetto", ["export", str(run), str(folder / "trace"), "--to", "perfetto"], 10, 200),
        ):
            cpu_s, wall_s, megabytes = _measured([luff_command(), *words])
            print(
                f"luff {name}, {steps} steps: {cpu_s:.2f} s of CPU time, {wall_s:.2f} s, at most {megabytes:.0f} MB"
            )
            results.append({"part": "large", "what": name, "steps": steps, "cpu_s": cpu_s, "mb": megabytes})
            gates.append(gate(f"luff {name}: s", _exact(cpu_s), cpu_limit))
            gates.append(gate(f"luff {name}: MB", _exact(megabytes), memory_limit))
        print(f"  {', '.join(say(one['ok']) for one in gates)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results, gates
