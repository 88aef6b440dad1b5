"""Loaders that fork new workers at every epoch: `./dev bench loaders [--pairs 8] [--json FILE]`.

A bare training process and one with Luff take turns. In a turn each trains one epoch, for which its DataLoader starts
two workers, and then draws all batches once more from new workers, without training. The gates compare this second
pass, which is the loader alone: the fork of a process with a writer thread and mapped blocks, the children's work,
and their end. CPU time is that of the process and its children; wall time is compared by the fastest pass of each
side, since load only adds. The trained epoch, with the whole cost of capture, is printed as well.

The children must be inert: they write nothing into the run, and the run has one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from _gates import finish, gate, gate_of_best, measured, say
from torch import nn
from torch.utils.data import DataLoader, Dataset

LIMIT = 1.05
WORKERS = 2
SAMPLES = 1024
BATCH = 32


class Noise(Dataset[tuple[torch.Tensor, int]]):
    """Random pictures that a worker must compute."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), index % 10


@dataclass
class Epoch:
    """Seconds of one turn."""

    train_wall: float
    draw_wall: float
    draw_cpu: float


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of its children that have ended."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in own)


def child(run: str) -> int:
    """Trains one epoch and draws one for each line of standard input; prints their seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_function = nn.CrossEntropyLoss()
    hook: Any = None
    if run:
        import luff.torch

        # The defaults, and values once per epoch: the blocks they are copied to are mapped when a worker forks.
        values: dict[str, Any] = {"name": "values", "roles": ["weight", "gradient"], "forms": ["raw"]}
        values["save"] = {"save_interval": SAMPLES // BATCH}
        hook = luff.torch.attach(
            model, optimizer, loss_function, run=run, collections=[values], max_overhead=0
        )
    data = Noise()
    for line in sys.stdin:
        if line.strip() != "epoch":
            break
        start = time.perf_counter()
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS):
            optimizer.zero_grad()
            loss_function(model(x), y).backward()
            optimizer.step()
        train_wall = time.perf_counter() - start
        if hook is not None:
            hook.flush(60.0)  # pending writes are not a cost of the loader
        start, cpu = time.perf_counter(), cpu_seconds()
        for _ in DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS):
            pass
        print(train_wall, time.perf_counter() - start, cpu_seconds() - cpu, flush=True)
    if hook is not None:
        steps = hook.health()["counters"]["steps"]
        hook.close()
        import luff

        trial = luff.open_trial(run)
        workers = len(list(trial.workers()))
        print(json.dumps({"steps": steps, "workers": workers, "gaps": len(list(trial.gaps()))}), flush=True)
    return 0


class Trainer:
    """A training in its own process that waits between epochs."""

    def __init__(self, run: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.input: TextIO = self.process.stdin  # type: ignore[assignment]
        self.output: TextIO = self.process.stdout  # type: ignore[assignment]

    def epoch(self) -> Epoch:
        """Runs one turn."""
        self.input.write("epoch\n")
        self.input.flush()
        return Epoch(*map(float, self.output.readline().split()))

    def end(self) -> dict[str, Any]:
        """Ends the training; returns the number of steps, workers and gaps of its run."""
        self.input.close()
        answer = self.output.read()
        if self.process.wait(60) != 0:
            raise SystemExit(f"the training ended with exit code {self.process.returncode}, expected 0")
        return json.loads(answer) if answer.strip() else {}


def measure(pairs: int) -> dict[str, Any]:
    """Alternates turns; up to six times as many pairs while the interval crosses the limit."""
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        bare, luff = Trainer(""), Trainer(os.path.join(folder, "run"))
        for trainer in (bare, luff):
            trainer.epoch()
        ratios: list[float] = []
        turns: list[tuple[Epoch, Epoch]] = []
        gates: list[dict[str, Any]] = []
        before = bare.epoch()
        for _ in range(6):
            for _ in range(pairs):
                own, after = luff.epoch(), bare.epoch()
                turns.append((own, after))
                ratios.append(own.draw_cpu / ((before.draw_cpu + after.draw_cpu) / 2))
                before = after
            walls = [min(e.draw_wall for e in side) for side in zip(*turns, strict=True)]
            gates = [
                gate("loaders/CPU time", measured(ratios), LIMIT),
                gate_of_best("loaders/wall time", [walls[0] / walls[1]], LIMIT),
            ]
            if all(g["ok"] is True for g in gates):
                break
        bare.end()
        facts = luff.end()
        # Children that record would have added workers to the run, or steps beyond the parent's.
        inert = facts["workers"] == 1 and facts["steps"] == (len(turns) + 1) * SAMPLES // BATCH
        gates.append({"name": "loaders/children inert", "value": facts["workers"], "limit": 1, "ok": inert})
        trained = measured([own.train_wall / other.train_wall for own, other in turns])
        return {
            "row": "loaders",
            "workers": WORKERS,
            "pairs": len(turns),
            "bare_ms": statistics.median(other.draw_wall for _, other in turns) * 1e3,
            "cpu_ratio": gates[0]["value"],
            "wall_ratio_of_best": gates[1]["value"],
            "trained_epoch_ratio": trained.median,
            "run": facts,
            "gates": gates,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Measures, prints and compares with the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", type=Path, help="file for results and gates")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return child(arguments.child)
    record = measure(arguments.pairs)
    low, high = record["gates"][0]["interval"]
    print(
        f"{WORKERS} loader workers made anew, bare {record['bare_ms']:.1f} ms: "
        f"CPU time x{record['cpu_ratio']:.3f} ({low:.3f} to {high:.3f}, {record['pairs']} pairs)  "
        f"wall time x{record['wall_ratio_of_best']:.3f}  limit {LIMIT}  "
        f"(trained epoch x{record['trained_epoch_ratio']:.3f})  "
        + "  ".join(say(g["ok"]) for g in record["gates"])
    )
    return finish([record], record["gates"], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
