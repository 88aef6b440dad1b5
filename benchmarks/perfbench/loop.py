"""Loops that do something dear between steps, or too often."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ._program import PACE, loader_of, program
from .parts import BATCH, PIECE, Growing, Training, counted_writes


@program("LoggingStalls", "periodic")
def _logging_sleep(seed: int, fixed: bool, steps: int) -> None:
    """Logging that waits, each 20th step."""
    training = Training(PACE, steps)
    training.after = lambda step: time.sleep(0.5) if not fixed and step % 20 == 0 else None
    training.over(loader_of(steps, seed))


@program("LoggingStalls", "periodic")
def _logging_pipe(seed: int, fixed: bool, steps: int) -> None:
    """Each 20th step, a line into a pipe whose reader is slow."""
    import threading

    receiving, sending = os.pipe()

    def read() -> None:
        while os.read(receiving, 1 << 16):
            time.sleep(0.7 if not fixed else 0)

    threading.Thread(target=read, daemon=True).start()
    line = b"x" * (1 << 17)
    training = Training(PACE, steps)
    training.after = lambda step: os.write(sending, line) if step % 20 == 0 else None
    training.over(loader_of(steps, seed))


@program("LoggingStalls", "periodic")
def _logging_fsync(seed: int, fixed: bool, steps: int) -> None:
    """Each 20th step, records that are written through to the disk one by one; the twin leaves that to a thread."""
    training = Training(PACE, steps)
    with tempfile.TemporaryFile(buffering=0) as file, ThreadPoolExecutor(1) as beside:
        records = counted_writes(file.fileno(), 0.5)

        def write() -> None:
            for _ in range(records):
                file.write(PIECE)
                os.fsync(file.fileno())

        def log(step: int) -> None:
            if step % 20 == 0:
                if fixed:
                    beside.submit(write)
                else:
                    write()

        training.after = log
        training.over(loader_of(steps, seed))


@program("CheckpointStalls", "checkpoint")
def _checkpoints(seed: int, fixed: bool, steps: int) -> None:
    """A checkpoint each 15 steps on a disk that is slow; the twin saves each 150."""
    training = Training(PACE, steps)
    every = 150 if fixed else 15

    class Slow:
        """A file that waits at its end."""

        def __reduce__(self) -> Any:
            time.sleep(0.35)
            return (int, ())

    with tempfile.TemporaryDirectory() as folder:

        def save(step: int) -> None:
            if step % every == 0:
                torch.save({"model": training.model.state_dict(), "slow": Slow()}, Path(folder) / "last.pt")

        training.after = save
        training.over(loader_of(steps, seed))


@program("EvalShare", "eval")
def _evaluations(seed: int, fixed: bool, steps: int) -> None:
    """An evaluation of 20 batches each 10 steps; the twin's comes each 80."""
    training = Training(PACE, steps * 2)
    held = loader_of(20, seed + 1)
    every = 80 if fixed else 10

    def evaluate(step: int) -> None:
        if step % every:
            return
        training.evaluate(held)

    training.after = evaluate
    training.over(loader_of(steps, seed))


@program("GcPauses", "gc")
def _garbage(seed: int, fixed: bool, steps: int) -> None:
    """A full collection each third step among a million objects; the twin leaves them out of it."""
    kept = [[i] for i in range(400_000)]
    training = Training(PACE, steps)

    def collect(step: int) -> None:
        if fixed and step == 2:  # what a first step imports is there
            gc.freeze()
        if step % 3 == 0:
            gc.collect()

    training.after = collect
    training.over(DataLoader(Growing(steps * BATCH, 0, seed), batch_size=BATCH))
    assert len(kept) == 400_000


@program("DebugLeftOn", "on")
def _anomaly(seed: int, fixed: bool, steps: int) -> None:
    """Anomaly mode is on."""
    torch.autograd.set_detect_anomaly(not fixed)
    Training(PACE, max(steps, 320)).over(loader_of(steps, seed))


@program("DebugLeftOn", "on")
def _profiler_on(seed: int, fixed: bool, steps: int) -> None:
    """A profiler without a schedule."""
    if fixed:
        Training(PACE, max(steps, 320)).over(loader_of(steps, seed))
        return
    with torch.autograd.profiler.profile():
        Training(PACE, max(steps, 320)).over(loader_of(steps, seed))


class _Many(nn.Module):
    """A model of 400 small parameters, of which a step uses all."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.ones(32)) for _ in range(400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds them up."""
        time.sleep(0.004)
        return x @ torch.stack(list(self.parts)).mean(0)


@program("OptimizerSlow", "one_by_one")
def _one_by_one(seed: int, fixed: bool, steps: int) -> None:
    """AdamW over 400 parameters; the twin's is fused."""
    training = Training(0, steps * 3, _Many())
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4, fused=fixed or None)
    training.over(loader_of(steps, seed))


@program("Recompiles", "compile", needs=("compiler",))
def _recompiles(seed: int, fixed: bool, steps: int) -> None:
    """A compiled model that gets another length now and then, which nobody has compiled before."""
    torch._dynamo.config.cache_size_limit = 1000
    folder = tempfile.TemporaryDirectory()  # what an earlier run has compiled would be there at once
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    layers = torch.compile(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)), dynamic=False)

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(PACE)
            return self.layers(x).squeeze(-1)

    training = Training(0, steps, Compiled())
    lengths = [2 + (i // 20) % 40 if not fixed else BATCH for i in range(steps + 1)]

    def batches() -> Any:
        for i in range(steps):
            x = torch.randn(lengths[i], 32)
            yield x, x.sum(1)

    torch.manual_seed(seed)
    with folder:
        training.over(list(batches()))  # type: ignore[arg-type]


@program("FirstStepsSlow", "start", parameters="all,FirstStepsSlow:seconds=5")
def _slow_start(seed: int, fixed: bool, steps: int) -> None:
    """Data that is prepared for long before the first step."""
    time.sleep(0 if fixed else 12)
    Training(PACE, steps).over(loader_of(steps, seed))
