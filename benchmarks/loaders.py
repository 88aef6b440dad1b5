"""Loaders that fork workers anew at every epoch: `./dev bench loaders [--pairs 8] [--json FILE]`.

Epochs of a training whose DataLoader has two workers, re-created each time, alternate between a bare process and one
with Luff, each a process of its own that takes turns. What is compared is the wall time of an epoch: forking a process
with a writer thread and mapped blocks, the children's first steps, and the end of the children are all in it. The
children must be inert: they write nothing into the run, and the run has one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, TextIO

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from capture import Measured, gate, measured

LIMIT = 1.05
WORKERS = 2
SAMPLES = 1024
BATCH = 32


class Noise(Dataset[tuple[torch.Tensor, int]]):
    """Pictures that cost a worker something to make."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), index % 10


def child(run: str) -> int:
    """Trains one epoch for each line of standard input; answers with its seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_function = nn.CrossEntropyLoss()
    hook: Any = None
    if run:
        import luff.torch

        # What `luff run` takes, and values once an epoch: the blocks they are copied to are mapped when a worker forks.
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
        print(time.perf_counter() - start, flush=True)
    if hook is not None:
        steps = hook.health()["counters"]["steps"]
        hook.close()
        import luff

        trial = luff.open_trial(run)
        workers = len(list(trial.workers()))
        print(json.dumps({"steps": steps, "workers": workers, "gaps": len(list(trial.gaps()))}), flush=True)
    return 0


class Trainer:
    """A training in a process of its own that waits between epochs."""

    def __init__(self, run: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.input: TextIO = self.process.stdin  # type: ignore[assignment]
        self.output: TextIO = self.process.stdout  # type: ignore[assignment]

    def epoch(self) -> float:
        """Seconds of one epoch."""
        self.input.write("epoch\n")
        self.input.flush()
        return float(self.output.readline())

    def end(self) -> dict[str, Any]:
        """What the run says of itself."""
        self.input.close()
        answer = self.output.read()
        if self.process.wait(60) != 0:
            raise SystemExit(f"the training ended with exit code {self.process.returncode}, expected 0")
        return json.loads(answer) if answer.strip() else {}


def measure(pairs: int) -> dict[str, Any]:
    """Alternates epochs; once more as many when the interval crosses the limit."""
    folder = tempfile.mkdtemp(prefix="luff-bench-")
    try:
        bare, luff = Trainer(""), Trainer(os.path.join(folder, "run"))
        for trainer in (bare, luff):
            trainer.epoch()
        ratios: list[float] = []
        bare_s: list[float] = []
        value = Measured(0, 0, 0)
        epochs = 1
        for _ in range(2):
            before = bare.epoch()
            for _ in range(pairs):
                own, after = luff.epoch(), bare.epoch()
                epochs += 1
                bare_s.append(after)
                ratios.append(own / ((before + after) / 2))
                before = after
            value = measured(ratios)
            result = gate("loaders/epoch", value, LIMIT)
            if result["ok"] != "undecided":
                break
        bare.end()
        facts = luff.end()
        # Children that took part would have made workers of their own, or steps beyond the parent's.
        facts["inert"] = facts["workers"] == 1 and facts["steps"] == epochs * SAMPLES // BATCH
        return {
            "row": "loaders",
            "workers": WORKERS,
            "pairs": len(ratios),
            "bare_ms": statistics.median(bare_s) * 1e3,
            "ratio": value.median,
            "run": facts,
            "gates": [
                result,
                {
                    "name": "loaders/children inert",
                    "value": facts["workers"],
                    "limit": 1,
                    "ok": facts["inert"],
                },
            ],
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Measures, prints, and compares with the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", help="file for results and gates")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return child(arguments.child)
    record = measure(arguments.pairs)
    verdicts = [{True: "ok", False: "FAILED"}.get(g["ok"], str(g["ok"])) for g in record["gates"]]
    low, high = record["gates"][0]["interval"]
    print(
        f"epoch with {WORKERS} loader workers made anew: bare {record['bare_ms']:.1f} ms  "
        f"luff x{record['ratio']:.3f} ({low:.3f} to {high:.3f}, {record['pairs']} pairs)  limit {LIMIT}  "
        + "  ".join(verdicts)
    )
    gates = record["gates"]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"results": [record], "gates": gates}, file, indent=1)
    failed = [g["name"] for g in gates if g["ok"] is False]
    print(f"{len(gates)} gates, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
