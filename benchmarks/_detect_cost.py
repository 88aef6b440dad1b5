"""What the default rules' needs cost the fault bench's own programs: microseconds of CPU time a step.

Each program is trained bare and watched in turn, in one process with one thread; both trainings compute the same. The
smallest of several is taken: load of other processes only adds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("ph01", "ph02", "ph05", "ph13", "ph15", "ph17")
LIMIT_US = 200.0
ROUNDS = 5


def _train(program: str, settings: dict[str, Any] | None) -> tuple[float, int]:
    import luff.torch
    from faultbench import core
    from faultbench.programs import RUNS

    job = RUNS[program].build(0, False)
    core.seed_all(1)
    with tempfile.TemporaryDirectory() as folder:
        hook = None
        if settings is not None:
            hook = luff.torch.attach(job.model, job.optimizer, job.loss_fn, run=f"{folder}/run", **settings)
        begin = time.process_time()
        steps = core.train(job)
        if hook is not None:
            hook.flush(30.0)
        seconds = time.process_time() - begin
        if hook is not None:
            hook.close()
    return seconds, steps


def cost(luff: str) -> tuple[str, list[dict[str, Any]]]:
    """A Markdown table and its rows."""
    import torch

    torch.set_num_threads(1)
    done = subprocess.run([luff, "rules", "--capture"], capture_output=True, check=True)
    settings = {**json.loads(done.stdout), "max_overhead": 0}
    rows = []
    for program in PROGRAMS:
        bare, watched, steps = [], [], 1
        for _ in range(ROUNDS):
            seconds, steps = _train(program, None)
            bare.append(seconds)
            watched.append(_train(program, settings)[0])
        extra = 1e6 * (min(watched) - min(bare)) / steps
        rows.append({"program": program, "step_us": 1e6 * min(bare) / steps, "extra_us": extra})
        print(
            f"{program}: step {rows[-1]['step_us']:.0f} us, extra {extra:.0f} us", file=sys.stderr, flush=True
        )
    worst = max(rows, key=lambda row: row["extra_us"])
    lines = ["| program | bare step, us | extra, us |", "| --- | --- | --- |"]
    lines += [f"| {r['program']} | {r['step_us']:.0f} | {r['extra_us']:.0f} |" for r in rows]
    median = statistics.median(row["extra_us"] for row in rows)
    verdict = "ok" if worst["extra_us"] <= LIMIT_US else "MISSED"
    lines.append(
        f"\nmedian {median:.0f} us, worst {worst['program']} {worst['extra_us']:.0f} us; "
        f"goal {LIMIT_US:.0f} us: {verdict}"
    )
    return "\n".join(lines), rows


def capture(extra: list[str]) -> int:
    """The same on the models of `./dev bench capture`."""
    here = Path(__file__).resolve().parent
    command = [sys.executable, str(here / "capture.py"), "--rows", "rules", "--no-idle", *extra]
    return subprocess.run(command, check=False).returncode
