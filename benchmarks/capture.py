"""The cost of capture: `./dev bench capture [--models mlp,gpt] [--rows NAME,...] [--json FILE]`.

Blocks of steps of the bare loop, of Luff and of smdebug alternate in one process with one torch thread. Each block
begins with a step that is not timed, because the previous block leaves its memory in the caches. It runs between two
blocks of the bare loop and is compared with their mean, so that varying load falls on both sides. `extra` is the CPU
time beyond the bare step, including background threads and the flush at the end of each block. Gates compare Luff's
extra with smdebug's in the same pair of blocks. The median of at least 8 pairs decides; a second set of pairs is
measured if the interval of the median crosses the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _gates import Measured, finish, gate, luff_command, measured, say, verdict
from torch import nn
from workloads import models

NO_PEERS = os.environ.get("LUFF_BENCH_NO_PEERS", "")
WG = ("weights", "biases", "gradients")
EVERY = {"save_interval": 1}
PINNED_LIMIT = 2.5


def _forms(*forms: str) -> list[dict[str, Any]]:
    return [{"name": name, "forms": list(forms), "save": EVERY} for name in WG]


def _of_rules() -> dict[str, Any]:
    """Returns the settings that `luff run` captures with by default."""
    done = subprocess.run([luff_command(), "rules", "--capture"], capture_output=True, check=True)
    return {**json.loads(done.stdout), "max_overhead": 0}


def _all(interval: int) -> list[dict[str, Any]]:
    """Returns the collections that smdebug calls all: without optimizer state and buffers."""
    roles = ["weight", "bias", "gradient", "input", "output", "loss", "loss_input", "label"]
    return [{"name": "everything", "roles": roles, "save": {"save_interval": interval}}]


@dataclass
class Row:
    """One line of the table."""

    name: str
    title: str
    options: dict[str, Any]  # arguments of luff.torch.attach
    peer: str | None  # the tensors that smdebug saves
    interval: int = 1
    goals: dict[str, float] = field(default_factory=dict)  # slowdown by model
    share_limit: float | None = None  # as a share of smdebug's extra
    slowdown_limit: float | None = None


def _goals(mlp: float, resnet18: float, gpt: float) -> dict[str, float]:
    return {"mlp": mlp, "resnet18": resnet18, "gpt": gpt}


ROWS = [
    Row(
        "all_10",
        "all tensors every 10 steps",
        {"collections": _all(10), "defaults": False},
        "all",
        10,
        _goals(1.04, 1.04, 1.04),
        1 / 5,
    ),
    Row(
        "wg_1",
        "weights + gradients every step",
        {"collections": _forms("summary", "raw")},
        "wg",
        1,
        _goals(1.12, 1.06, 1.05),
        1 / 10,
    ),
    Row(
        "all_1",
        "all tensors every step",
        {"collections": _all(1), "defaults": False},
        "all",
        1,
        _goals(1.22, 1.15, 1.12),
        1 / 12,
    ),
    Row(
        "statistics_1",
        "statistics of weights + gradients every step",
        {"collections": _forms("summary")},
        "statistics",
        1,
        _goals(1.08, 1.03, 1.03),
        1 / 15,
    ),
    Row(
        "histogram_1",
        "the same with a 4,096-bin histogram",
        {"collections": _forms("summary", "histogram")},
        None,
        1,
        _goals(1.15, 1.06, 1.05),
    ),
    Row(
        "default",
        "default of `attach`",
        {},
        None,
        1,
        _goals(1.10, 1.05, 1.05),
        None,
        1.15,
    ),
    Row(
        "rules",
        "default `luff run`: what all rules need",
        {"of_rules": True},
        None,
        1,
        _goals(1.10, 1.06, 1.06),
        None,
        1.20,
    ),
]


class Bare:
    """The loop without any system."""

    def drain(self) -> None:
        """Does nothing: nothing runs in the background."""

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class Luff:
    """Luff on one model."""

    def __init__(self, out: str, options: dict[str, Any], workload: models.Workload) -> None:
        import luff.torch

        settings = _of_rules() if options.get("of_rules") else dict(options)
        settings.setdefault("max_overhead", 0)  # the governor would record less than is to be measured
        self.hook = luff.torch.attach(workload.model, workload.optimizer, workload.loss, run=out, **settings)

    def drain(self) -> None:
        """Waits until everything is on disk."""
        self.hook.flush(60.0)

    def close(self) -> None:
        """Ends the run."""
        self.hook.close()


@dataclass
class Block:
    """Seconds per step of one block."""

    cpu_s: float
    wall_s: float


class Runner:
    """One workload with one system."""

    def __init__(self, model: str, system: Callable[[models.Workload], Any]) -> None:
        self.workload = models.make(model)
        self.system = system(self.workload)

    def block(self, steps: int) -> Block:
        """Trains `steps` steps; returns the time per step."""
        batches = [self.workload.batch() for _ in range(steps)]
        models.step(self.workload, self.workload.batch())
        self.system.drain()
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in batches:
            models.step(self.workload, batch)
        wall = time.perf_counter() - wall
        self.system.drain()
        block = Block((time.process_time() - cpu) / steps, wall / steps)
        self.workload.optimizer.zero_grad(set_to_none=True)
        return block

    def share_memory(self, other: Runner) -> None:
        """Makes weights and optimizer state share the memory of those of `other`.

        Two copies of a model differ by up to 13 % in speed because of the place of their pages.
        """
        for own, from_ in zip(
            self.workload.model.parameters(), other.workload.model.parameters(), strict=True
        ):
            own.data = from_.data
            state = self.workload.optimizer.state[own]
            for key, value in other.workload.optimizer.state[from_].items():
                if torch.is_tensor(value) and value.dim() > 0:
                    state[key] = value


def run_row(row: Row, model: str, pairs: int, steps: int) -> dict[str, Any]:
    """Measures one row on one workload."""
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        runners = {
            "bare": Runner(model, lambda _: Bare()),
            "luff": Runner(model, lambda w: Luff(os.path.join(folder, "run"), row.options, w)),
        }
        if row.peer is not None and not NO_PEERS:
            from peers.smdebug_peer import SmDebug

            peer, interval = row.peer, row.interval
            runners["smdebug"] = Runner(
                model, lambda w: SmDebug(os.path.join(folder, "smd"), peer, interval, w.model, w.loss)
            )
        steps = max(steps, row.interval)
        bare = runners.pop("bare")
        bare.block(max(3, min(steps, 10)))
        blocks: dict[str, list[tuple[Block, Block]]] = {name: [] for name in runners}
        for runner in runners.values():
            runner.block(max(3, min(steps, 10)))
            runner.share_memory(bare)
        result: dict[str, Any] = {"row": row.name, "model": model, "steps": steps}
        for attempt in range(2):
            before = bare.block(steps)
            for _ in range(pairs):
                for name, runner in runners.items():
                    own, after = runner.block(steps), bare.block(steps)
                    blocks[name].append((own, middle(before, after)))
                    before = after
            summarise(row, model, blocks, result)
            gates = result["gates"]
            if attempt == 1 or all(g["ok"] != "undecided" for g in gates):
                break
        runners["luff"].system.drain()
        health = runners["luff"].system.hook.health()
        result["gaps"] = health.get("counters", {}).get("gaps", 0)
        for runner in runners.values():
            runner.system.close()
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def middle(one: Block, other: Block) -> Block:
    """Returns the mean of two blocks."""
    return Block((one.cpu_s + other.cpu_s) / 2, (one.wall_s + other.wall_s) / 2)


def summarise(
    row: Row, model: str, blocks: dict[str, list[tuple[Block, Block]]], result: dict[str, Any]
) -> None:
    """Fills in slowdowns, extras and gates; each block comes with the mean of the bare blocks around it."""
    result["pairs"] = len(blocks["luff"])
    result["bare_ms"] = statistics.median(b.cpu_s for _, b in blocks["luff"]) * 1e3
    gates: list[dict[str, Any]] = []
    for name, own in blocks.items():
        cpu = measured([o.cpu_s / b.cpu_s for o, b in own])
        wall = measured([o.wall_s / b.wall_s for o, b in own])
        extra = statistics.median(o.cpu_s - b.cpu_s for o, b in own)
        result[name] = {"slowdown": wall.median, "cpu_ratio": cpu.median, "extra_ms": extra * 1e3}
        if name == "luff" and row.slowdown_limit is not None:
            gates.append(gate(f"{row.name}/{model}/slowdown", wall, row.slowdown_limit))
    if "smdebug" in blocks and row.share_limit is not None:
        share = measured(
            [
                (o.cpu_s - b.cpu_s) / max(s.cpu_s - c.cpu_s, 1e-9)
                for (o, b), (s, c) in zip(blocks["luff"], blocks["smdebug"], strict=True)
            ]
        )
        result["share"] = share.median
        gates.append(gate(f"{row.name}/{model}/extra", share, row.share_limit))
    result["goal"] = row.goals.get(model)
    result["gates"] = gates


class Tiny(nn.Module):
    """A module that does almost no work of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Identity()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, calls: int) -> torch.Tensor:
        """Calls the child `calls` times."""
        for _ in range(calls):
            self.child(x)
        return x * self.weight


def idle(model: str) -> dict[str, Any]:
    """Computes the slowdown of an idle hook: calls per step times ns per call in a tight loop, over the bare step."""
    import luff.torch

    workload = models.make(model)
    module_calls = sum(1 for _ in workload.model.modules())
    batch = workload.batch()
    for _ in range(3):
        models.step(workload, batch)
    bare_s = min(timed(lambda: models.step(workload, batch)) for _ in range(10))

    def tiny_step(tiny: Tiny, optimizer: torch.optim.Optimizer, calls: int) -> None:
        optimizer.zero_grad()
        tiny(torch.ones(1), calls).sum().backward()
        optimizer.step()

    def cost(attach: bool) -> tuple[float, float]:
        tiny = Tiny()
        optimizer = torch.optim.SGD(tiny.parameters(), lr=0.0)
        folder = tempfile.mkdtemp(prefix="luff-bench-")
        never = [{"name": name, "forms": []} for name in (*WG, "losses")]
        hook = (
            luff.torch.attach(tiny, optimizer, run=os.path.join(folder, "run"), collections=never)
            if attach
            else None
        )
        for calls in (0, 2000):
            tiny_step(tiny, optimizer, calls)
        fixed = (
            min(timed(lambda: [tiny_step(tiny, optimizer, 0) for _ in range(200)]) for _ in range(7)) / 200
        )
        many = min(timed(lambda: tiny_step(tiny, optimizer, 20_000)) for _ in range(7))
        if hook is not None:
            hook.close()
        shutil.rmtree(folder, ignore_errors=True)
        return fixed, (many - fixed) / 20_000

    bare_fixed, bare_call = cost(False)
    own_fixed, own_call = cost(True)
    call_ns = max(0.0, own_call - bare_call) * 1e9
    fixed_us = max(0.0, own_fixed - bare_fixed) * 1e6
    ratio = 1 + (module_calls * call_ns * 1e-9 + fixed_us * 1e-6) / bare_s
    value = Measured(ratio, ratio, ratio)
    return {
        "row": "idle",
        "model": model,
        "module_calls": module_calls,
        "ns_per_call": call_ns,
        "us_per_step": fixed_us,
        "bare_ms": bare_s * 1e3,
        "ratio": ratio,
        "goal": 1.002,
        "gates": [gate(f"idle/{model}", value, 1.005)],
    }


def timed(function: Callable[[], object]) -> float:
    """Returns the seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def confine(cores: set[int]) -> None:
    """Restricts all threads of this process to these cores."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)


def pinned(row: Row, model: str, pairs: int, steps: int) -> dict[str, Any]:
    """Measures Luff's extra with all threads on one core over its extra with a spare core; their blocks alternate."""
    free = os.sched_getaffinity(0)
    one = {min(free)}
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        bare = Runner(model, lambda _: Bare())
        luff = Runner(model, lambda w: Luff(os.path.join(folder, "run"), row.options, w))
        steps = max(steps, row.interval)
        bare.block(max(3, min(steps, 10)))
        luff.block(max(3, min(steps, 10)))
        luff.share_memory(bare)
        extras: dict[str, list[float]] = {"spare": [], "pinned": []}
        walls: dict[str, list[float]] = {"spare": [], "pinned": []}
        value = Measured(0, 0, 0)
        bare_s: list[float] = []
        for _ in range(2):
            for _ in range(pairs):
                for name, cores in (("spare", free), ("pinned", one)):
                    confine(cores)
                    before, own, after = bare.block(steps), luff.block(steps), bare.block(steps)
                    base = middle(before, after)
                    bare_s.append(base.cpu_s)
                    extras[name].append(own.cpu_s - base.cpu_s)
                    walls[name].append(own.wall_s / base.wall_s)
            # Compares each block without a spare core with the median of those with one: the extra of a single block
            # is so small compared with the step that the quotient of two would be mostly noise.
            spare = max(statistics.median(extras["spare"]), 1e-6)
            value = measured([extra / spare for extra in extras["pinned"]])
            if verdict(value, PINNED_LIMIT) != "undecided":
                break
        luff.system.close()
    finally:
        confine(free)
        shutil.rmtree(folder, ignore_errors=True)
    record: dict[str, Any] = {"row": f"pinned_{row.name}", "model": model, "pairs": len(extras["pinned"])}
    record["bare_ms"] = statistics.median(bare_s) * 1e3
    for name, extra in extras.items():
        record[name] = {
            "extra_ms": statistics.median(extra) * 1e3,
            "slowdown": statistics.median(walls[name]),
            "cpu_ratio": 1 + statistics.median(extra) / statistics.median(bare_s),
        }
    record |= {"extra_ratio": value.median, "goal": 1.5}
    record["gates"] = [gate(f"pinned_{row.name}/{model}", value, PINNED_LIMIT)]
    return record


def show(record: dict[str, Any]) -> None:
    """Prints one line for people."""
    parts = [f"{record['row']:<14} {record['model']:<9} bare {record['bare_ms']:7.2f} ms"]
    for name in ("luff", "smdebug", "spare", "pinned"):
        if name in record:
            own = record[name]
            parts.append(
                f"{name} x{own['slowdown']:.3f} (cpu x{own['cpu_ratio']:.3f}, {own['extra_ms']:+.2f} ms)"
            )
    if "share" in record:
        share = record["share"]
        parts.append(f"share 1/{1 / share:.1f}" if share > 1e-3 else "share below 1/1000")
    if "ratio" in record:
        parts.append(
            f"x{record['ratio']:.4f} ({record['ns_per_call']:.0f} ns a call, {record['us_per_step']:.0f} us a step)"
        )
    if "extra_ratio" in record:
        parts.append(f"extra x{record['extra_ratio']:.2f}")
    parts.append(f"goal {record['goal']}")
    if record.get("gaps"):
        parts.append(f"{record['gaps']} gaps")
    parts += [say(g["ok"]) for g in record["gates"]]
    print("  ".join(parts), flush=True)


def main() -> int:
    """Runs the requested rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(models.NAMES))
    parser.add_argument("--rows", default=",".join(r.name for r in ROWS))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6, help="steps of a block")
    parser.add_argument("--json", type=Path, help="file for results and gates")
    parser.add_argument("--no-idle", action="store_true")
    parser.add_argument("--pinned", action="store_true", help="also without a spare core")
    parser.add_argument("--only-pinned", action="store_true", help="nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if NO_PEERS:
        print(f"smdebug skipped: {NO_PEERS}")
    wanted, names = arguments.rows.split(","), arguments.models.split(",")
    results: list[dict[str, Any]] = []
    for row in ROWS:
        for model in names if row.name in wanted and not arguments.only_pinned else ():
            results.append(run_row(row, model, arguments.pairs, arguments.steps))
            show(results[-1])
    if not (arguments.no_idle or arguments.only_pinned):
        for model in names:
            results.append(idle(model))
            show(results[-1])
    for model in names if arguments.pinned or arguments.only_pinned else ():
        for row in ROWS:
            if row.name not in wanted:
                continue
            if len(os.sched_getaffinity(0)) < 2:
                print("pinned rows skipped: there is one core only, so nothing to compare with")
                break
            results.append(pinned(row, model, arguments.pairs, arguments.steps))
            show(results[-1])
    gates = [g for record in results for g in record["gates"]]
    return finish(results, gates, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
