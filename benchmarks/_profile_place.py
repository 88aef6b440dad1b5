"""What phases cost the thread that trains, measured in place: between the steps of a real training, with cold caches.

Each call that a phase makes is timed where it stands. Handing the phases over is inside `StepWriter.end`, which is
timed with profiling and without it, in turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _gates import Measured, gate, luff_command, measured, say

if TYPE_CHECKING:
    from typing_extensions import Self

_CALLS = ("enter_phase", "leave_phase", "enter_wait")


class _Watch:
    """Adds up the time of some functions, in all modules of Luff that call them."""

    def __init__(self) -> None:
        self.ns = self.calls = 0
        self._replaced: list[tuple[Any, str, Any]] = []

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter_ns()
            result = function(*args)
            self.ns += time.perf_counter_ns() - began
            self.calls += 1
            return result

        return timed

    def __enter__(self) -> Self:
        from luff import _core
        from luff.torch.patches import _phases

        found = {getattr(_core, name): name for name in _CALLS} | {_phases._awaited: "_awaited"}
        for place in [module for name, module in sys.modules.items() if name.startswith("luff.")]:
            for function, name in found.items():
                if place is not _core and vars(place).get(name) is function:
                    self._replaced.append((place, name, function))
                    setattr(place, name, self._timed(function))
        return self

    def __exit__(self, *error: object) -> None:
        for place, name, function in self._replaced:
            setattr(place, name, function)

    def take(self) -> tuple[int, int]:
        """Returns nanoseconds and calls since the last call."""
        taken, self.ns, self.calls = (self.ns, self.calls), 0, 0
        return taken


def _ends(runner: Any, steps: int) -> float:
    """Returns the median time of `StepWriter.end` in so many steps, in nanoseconds."""
    from luff._step_writer import StepWriter
    from workloads import models

    took: list[int] = []
    end = StepWriter.end

    def timed(writer: Any, *args: Any, **more: Any) -> Any:
        began = time.perf_counter_ns()
        result = end(writer, *args, **more)
        took.append(time.perf_counter_ns() - began)
        return result

    StepWriter.end = timed  # type: ignore[assignment, method-assign]
    try:
        for _ in range(steps):
            models.step(runner.workload, runner.workload.batch())
    finally:
        StepWriter.end = end  # type: ignore[assignment, method-assign]
    return statistics.median(took)


def place(pairs: int, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures a step of the mlp, and batches of a loader with two workers."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from workloads import models

    from capture import Luff, Runner

    os.environ["LUFF_EXECUTABLE"] = luff_command()
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    each: list[float] = []
    batch: list[float] = []
    calls = 0
    try:
        on = Runner("mlp", lambda w: Luff(str(folder / "on"), {"profile": "basic"}, w))
        off = Runner("mlp", lambda w: Luff(str(folder / "off"), {"profile": "off"}, w))
        on.block(5)
        off.block(5)
        given = [_ends(on, steps) - _ends(off, steps) for _ in range(pairs)]
        handed = max(statistics.median(given), 0.0)
        loader = DataLoader(TensorDataset(torch.randn(pairs * steps, 8)), batch_size=1, num_workers=2)
        with _Watch() as watch:
            for _ in range(pairs * steps):
                models.step(on.workload, on.workload.batch())
                ns, calls = watch.take()
                each.append((ns + handed) * 1e-3)
            for _ in loader:
                batch.append(watch.take()[0] * 1e-3)
                models.step(on.workload, on.workload.batch())
                watch.take()
        on.system.close()
        off.system.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    step, wait = measured(each), measured(batch)
    print(
        f"training thread, in place: {step.median:.1f} us a step ({calls} calls; handing over {handed * 1e-3:.1f} us), "
        f"{wait.median:.1f} us a batch of a loader"
    )
    gates = [
        gate("training thread: us a step", Measured(step.median, step.median, step.median), 40),
        gate("training thread: us a batch of a loader", Measured(wait.median, wait.median, wait.median), 12),
    ]
    print(f"  {', '.join(say(one['ok']) for one in gates)}")
    result = {"part": "place", "us_a_step": step.median, "calls": calls, "handing_over_us": handed * 1e-3,
              "us_a_batch": wait.median}  # fmt: skip
    return [result], gates
