"""What a trace costs: CPU time after the traced steps for each event, and steps afterwards over steps before.

A trace cannot be taken back, so steps before and after do not alternate. What the machine drifts meanwhile shows in two
sets of blocks before, and widens the interval.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import Measured, gate, luff_command, measured, say

_TRACES, _STEPS = 8, 3


def _events(file: Path) -> int:
    content = json.loads(file.read_text(encoding="utf-8"))
    return sum(event.get("ph") == "X" for event in content["traceEvents"])


def trace(model: str, pairs: int, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures `_TRACES` traces of `_STEPS` steps each, and blocks of steps before and after all of them."""
    from luff.torch.loop._trace import TorchTracer
    from workloads import models

    from capture import Luff, Runner

    os.environ["LUFF_EXECUTABLE"] = luff_command()
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    end = TorchTracer.end
    spent: list[float] = []

    def timed_end(tracer: TorchTracer) -> None:
        active, began = tracer.active, time.process_time()
        end(tracer)
        if active:
            spent.append(time.process_time() - began)

    try:
        runner = Runner(model, lambda w: Luff(str(folder / "run"), {}, w))

        def blocks() -> list[float]:
            return [runner.block(steps).cpu_s for _ in range(pairs)]

        runner.block(5)
        earlier, before = blocks(), blocks()
        TorchTracer.end = timed_end  # type: ignore[method-assign]
        for _ in range(_TRACES):
            if why := runner.system.hook.trace(_STEPS):
                raise SystemExit(f"no trace: {why}")
            for _ in range(_STEPS + 1):
                models.step(runner.workload, runner.workload.batch())
        after = blocks()
        runner.system.close()
        events = [_events(file) for file in sorted((folder / "run" / "w0000" / "traces").glob("*.json"))]
    finally:
        TorchTracer.end = end  # type: ignore[method-assign]
        shutil.rmtree(folder, ignore_errors=True)
    assert len(events) == len(spent) == _TRACES, (events, spent)
    each = measured([1e6 * cpu / count for cpu, count in zip(spent, events, strict=True)])
    again = measured([now / then for now, then in zip(after, before, strict=True)])
    control = measured([now / then for now, then in zip(before, earlier, strict=True)])
    drift = abs(control.median - 1)
    again = Measured(
        again.median, min(again.low, again.median - drift), max(again.high, again.median + drift)
    )
    print(
        f"trace of {_STEPS} steps, {model}: {each.median:.1f} us of CPU time an event afterwards [{each.low:.1f}, "
        f"{each.high:.1f}], {events[-1]} events; steps after {_TRACES} of them over before {again.median:.4f} "
        f"[{again.low:.4f}, {again.high:.4f}], without a trace {control.median:.4f}"
    )
    gates = [
        gate(f"trace: us an event, {model}", each, 15),
        gate(f"trace: steps afterwards over before, {model}", again, 1.01),
    ]
    print(f"  {', '.join(say(one['ok']) for one in gates)}")
    result = {
        "part": "trace",
        "model": model,
        "us_an_event": each.median,
        "events": events,
        "after": again.median,
    }
    return [result], gates
