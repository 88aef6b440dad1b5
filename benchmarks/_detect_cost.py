"""The cost of the default rules' needs on the fault bench's own programs, in microseconds of CPU time.

Each program is trained bare and watched in turn, in one process with one thread; both trainings compute the same,
step by step. For each step the minimum over several trainings counts, since load of other processes only adds. The
second half of the steps gives the cost of a further step in the training thread (marginal). The extra cost of the
first half, of opening, flush and close is a run's fixed cost. Time of Luff's own threads is listed separately.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = ("ph01", "ph02", "ph05", "ph13", "ph15", "ph17")
LIMIT_US = 200.0
ROUNDS = 5  # at least; more while they fit into SECONDS
SECONDS = 15.0  # for each program
BLOCK = 16  # steps averaged: each block contains captures of every 2nd, 4th, ... 16th step


@dataclass(frozen=True)
class _Times:
    """CPU seconds of one training, or the minimum of several."""

    steps: list[float]  # the training thread, step by step
    around: float  # before the first step and after the last
    others: float  # all other threads


def _train(program: str, settings: dict[str, Any] | None) -> _Times:
    import luff.torch
    from faultbench import core
    from faultbench.programs import RUNS

    class Clock(core.Observer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.at: list[float] = []

        def attach(self, *args: Any, **kwargs: Any) -> None:
            if not self.at:
                self.at.append(time.thread_time())

        def on_step_end(self, step: int, loss: float) -> None:
            self.at.append(time.thread_time())

    job = RUNS[program].build(0, False)
    core.seed_all(1)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        hook = None
        begin, begin_thread = time.process_time(), time.thread_time()
        if settings is not None:
            hook = luff.torch.attach(job.model, job.optimizer, job.loss_fn, run=f"{folder}/run", **settings)
        core.train(job, clock)
        if hook is not None:
            hook.flush(30.0)
            hook.close()
        thread = time.thread_time() - begin_thread
        total = time.process_time() - begin
    steps = [after - before for before, after in itertools.pairwise(clock.at)]
    return _Times(steps, thread - sum(steps), total - thread)


def _least(times: list[_Times]) -> _Times:
    steps = [min(each) for each in zip(*(t.steps for t in times), strict=True)]
    return _Times(steps, min(t.around for t in times), min(t.others for t in times))


def _row(program: str, settings: dict[str, Any]) -> dict[str, Any]:
    bare, watched = [], []
    begin = time.monotonic()
    while len(bare) < ROUNDS or time.monotonic() - begin < SECONDS:
        bare.append(_train(program, None))
        watched.append(_train(program, settings))
    without, with_luff = _least(bare), _least(watched)
    count = len(without.steps)
    extra = [after - before for before, after in zip(without.steps, with_luff.steps, strict=True)]
    half = count // 2
    blocks = [extra[at : at + BLOCK] for at in range(half, count - BLOCK + 1, BLOCK)]
    marginal = statistics.median(statistics.fmean(block) for block in blocks)
    others = with_luff.others - without.others
    fixed = sum(extra[:half]) - half * marginal + with_luff.around - without.around
    return {
        "program": program,
        "steps": count,
        "step_us": 1e6 * statistics.fmean(without.steps),
        "extra_us": 1e6 * (count * marginal + fixed + others) / count,
        "marginal_us": 1e6 * marginal,
        "fixed_us": 1e6 * fixed,
        "others_us": 1e6 * others / count,
    }


def cost(luff: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns a Markdown table and its rows."""
    import torch

    torch.set_num_threads(1)
    done = subprocess.run([luff, "rules", "--capture"], capture_output=True, check=True)
    settings = {**json.loads(done.stdout), "max_overhead": 0}
    _train(PROGRAMS[0], settings)  # the first training of a process also loads modules
    rows = []
    for program in PROGRAMS:
        row = _row(program, settings)
        rows.append(row)
        print(
            f"{program}: step {row['step_us']:.0f} us, extra {row['extra_us']:.0f} us: a further step "
            f"{row['marginal_us']:.0f} us, own threads {row['others_us']:.0f} us, "
            f"fixed {row['fixed_us'] / 1000:.1f} ms",
            file=sys.stderr,
            flush=True,
        )
    worst = max(rows, key=lambda row: row["extra_us"])
    lines = [
        "| program | steps | bare step, us | extra a step, all in, us | a further step, us | own threads a step, us | "
        "fixed, ms a run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r['program']} | {r['steps']} | {r['step_us']:.0f} | {r['extra_us']:.0f} | {r['marginal_us']:.0f} | "
        f"{r['others_us']:.0f} | {r['fixed_us'] / 1000:.1f} |"
        for r in rows
    ]
    median = statistics.median(row["extra_us"] for row in rows)
    marginal = statistics.median(row["marginal_us"] for row in rows)
    verdict = "ok" if worst["extra_us"] <= LIMIT_US else "MISSED"
    lines.append(
        f"\nall in: median {median:.0f} us a step, worst {worst['program']} {worst['extra_us']:.0f} us; "
        f"goal {LIMIT_US:.0f} us: {verdict}\n"
        f"a further step: median {marginal:.0f} us"
    )
    return "\n".join(lines), rows


def capture(extra: list[str]) -> int:
    """Measures the same on the models of `./dev bench capture`; returns the exit code."""
    here = Path(__file__).resolve().parent
    command = [sys.executable, str(here / "capture.py"), "--rows", "rules", "--no-idle", *extra]
    return subprocess.run(command, check=False).returncode
