"""What a trace costs: CPU time after the traced steps for each event, and steps afterwards over steps before.

A trace cannot be taken back, so steps before and after it do not alternate, and machines drift by more than what is
looked for. So two processes train the same model and take turns, block by block: one of them makes traces half-way,
the other one takes as many steps without. What counts is how the ratio of the two changes, which no drift of the
machine does. CPU time of the whole process, Luff's threads included. Bytecodes and calls of steps after the traces are
counted, too, and compared with those of the same steps of the other process: no neighbour changes them.

`python _profile_trace.py MODEL RUN` is one of the two: it reads commands, a line each, and answers with JSON.

`instructions` decides without a quiet machine: callgrind counts the instructions of the training's thread in idle steps
after traces, and in the same steps of a process that has made none. The model is that of `./dev bench idle`: its steps
are hardly more than what Luff does in them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import Measured, gate, luff_command, measured, say

_TRACES, _STEPS = 8, 3
_SHORTEST_BLOCKS = 32  # of each process, before and after the traces
_RESAMPLES = 4000
_COUNTED = 32  # steps


def _events(file: Path) -> int:
    content = json.loads(file.read_text(encoding="utf-8"))
    return sum(event.get("ph") == "X" for event in content["traceEvents"])


class _Training:
    """One of the two processes, seen from outside."""

    def __init__(self, model: str, run: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, model, str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LUFF_EXECUTABLE": luff_command()},
        )

    def ask(self, *words: object) -> Any:
        """Gives a command and waits for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the training ended: exit code {self._process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _train(model: str, run: str) -> None:
    """Does what the commands on standard input say."""
    import torch
    from _pairs import keep_memory
    from idle import count
    from luff.torch.loop._trace import TorchTracer
    from workloads import models

    from capture import Luff, Runner

    keep_memory()
    torch.set_num_threads(1)
    spent: list[float] = []
    end = TorchTracer.end

    def timed_end(tracer: TorchTracer) -> None:
        active, began = tracer.active, time.process_time()
        end(tracer)
        if active:
            spent.append(time.process_time() - began)

    TorchTracer.end = timed_end  # type: ignore[method-assign]
    answers, sys.stdout = sys.stdout, sys.stderr
    runner = Runner(model, lambda w: Luff(run, {}, w))
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "block":
            answer: Any = runner.block(int(numbers[0])).cpu_s
        elif command == "count":
            batches = [runner.workload.batch() for _ in range(_COUNTED)]
            answer = count(lambda: [models.step(runner.workload, one) for one in batches])  # noqa: B023
        else:
            for _ in range(_TRACES):
                if command == "trace" and (why := runner.system.hook.trace(_STEPS)):
                    raise SystemExit(f"no trace: {why}")
                for _ in range(_STEPS + 1):
                    models.step(runner.workload, runner.workload.batch())
            runner.system.drain()
            answer = spent
        print(json.dumps(answer), file=answers, flush=True)
    runner.system.close()


def _turns(one: _Training, other: _Training, blocks: int, steps: int) -> list[float]:
    """Returns the ratios of blocks of two trainings that take turns, each pair in the other order."""
    ratios = []
    for at in range(blocks):
        pair = {}
        for training in (one, other) if at % 2 == 0 else (other, one):
            pair[training] = training.ask("block", steps)
        ratios.append(pair[one] / pair[other])
    return ratios


def change_of(before: list[float], after: list[float]) -> Measured:
    """Returns the median after over the one before, with a bootstrap interval of 95 %, of a fixed seed."""
    draw = random.Random(0)

    def median(values: list[float]) -> float:
        return statistics.median(draw.choices(values, k=len(values)))

    found = sorted(median(after) / median(before) for _ in range(_RESAMPLES))
    cut = _RESAMPLES // 40
    return Measured(statistics.median(after) / statistics.median(before), found[cut], found[-1 - cut])


def trace(model: str, pairs: int, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures `_TRACES` traces of `_STEPS` steps each, and blocks of steps before and after all of them."""
    blocks, steps = max(4 * pairs, _SHORTEST_BLOCKS), max(steps // 4, 1)
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    traced, other = _Training(model, folder / "run"), _Training(model, folder / "other")
    try:
        for training in (traced, other):
            training.ask("block", 5)
        _turns(traced, other, 3, steps)
        before = _turns(traced, other, blocks, steps)
        spent = traced.ask("trace")
        other.ask("steps")
        after = _turns(traced, other, blocks, steps)
        counted = [now / then for now, then in zip(traced.ask("count"), other.ask("count"), strict=True)]
        events = [_events(file) for file in sorted((folder / "run" / "w0000" / "traces").glob("*.json"))]
    finally:
        traced.end()
        other.end()
        shutil.rmtree(folder, ignore_errors=True)
    assert len(events) == len(spent) == _TRACES, (events, spent)
    each = measured([1e6 * cpu / count for cpu, count in zip(spent, events, strict=True)])
    again = change_of(before, after)
    half = blocks // 2
    control = change_of(before[:half], before[half:])  # nothing happened between these
    print(
        f"trace of {_STEPS} steps, {model}: {each.median:.1f} us of CPU time an event afterwards [{each.low:.1f}, "
        f"{each.high:.1f}], {events[-1]} events; steps after {_TRACES} of them over before {again.median:.4f} "
        f"[{again.low:.4f}, {again.high:.4f}], {blocks} pairs of blocks of {steps} steps each; halves before the "
        f"traces {control.median:.4f} [{control.low:.4f}, {control.high:.4f}]; bytecodes and calls of a step "
        f"{counted[0]:.5f} and {counted[1]:.5f} times those without a trace"
    )
    gates = [
        gate(f"trace: us an event, {model}", each, 15),
        gate(f"trace: steps afterwards over before, {model}", again, 1.01),
        gate(f"trace: bytecodes and calls afterwards, {model}", Measured(*[max(counted)] * 3), 1.01),
    ]
    print(f"  {', '.join(say(one['ok']) for one in gates)}")
    result = {
        "part": "trace",
        "model": model,
        "us_an_event": each.median,
        "events": events,
        "after": again.median,
        "interval": [again.low, again.high],
        "control": control.median,
        "counted": counted,
    }
    return [result], gates


def instructions() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Counts the instructions of steps after traces, and of the same steps of processes that made none."""
    import idle

    kinds = {"before": "attached", "after": "traced", "before, again": "attached"}
    counts = {name: idle.instructions(kind)[0] for name, kind in kinds.items()}
    ratios = sorted(counts["after"] / counts[name] for name in ("before", "before, again"))
    control = counts["before, again"] / counts["before"]
    print(
        f"instructions of the training's thread for a step after {idle.TRACES} traces: {counts['after']:,.0f}, "
        f"{ratios[0]:.5f} and {ratios[1]:.5f} times those without; these in two processes {control:.5f}"
    )
    held = gate(
        "trace: instructions afterwards", Measured(statistics.fmean(ratios), ratios[0], ratios[1]), 1.01
    )
    print(f"  {say(held['ok'])}")
    return [{"part": "instructions", "counts": counts, "ratios": ratios, "control": control}], [held]


if __name__ == "__main__":
    _train(sys.argv[1], sys.argv[2])
