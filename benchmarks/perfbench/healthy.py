"""Healthy programs that look suspicious."""

from __future__ import annotations

import mmap
import tempfile
import time
from collections import deque
from pathlib import Path

import torch

from ._program import PACE, loader_of, program
from .parts import Deep, Training, counted, spin
from .ranks import train_in_ranks


@program()
def _input_small(seed: int, fixed: bool, steps: int) -> None:
    """A loader without workers whose samples cost a little, 4 % of the step."""
    Training(0.035, steps).over(loader_of(steps, seed, 0.0015))


@program()
def _tiny(seed: int, fixed: bool, steps: int) -> None:
    """A tiny model, whose loader takes a large share of a step of a millisecond."""
    Training(0, steps * 10).over(loader_of(2000, seed))


@program()
def _evaluates(seed: int, fixed: bool, steps: int) -> None:
    """Evaluations that take a quarter of the time."""
    training = Training(PACE, steps)
    held = loader_of(20, seed + 1)

    def evaluate(step: int) -> None:
        if step % 60 == 0:
            training.evaluate(held)

    training.after = evaluate
    training.over(loader_of(steps, seed))


@program()
def _saves(seed: int, fixed: bool, steps: int) -> None:
    """A checkpoint at the end of each epoch."""
    training = Training(PACE, steps)
    with tempfile.TemporaryDirectory() as folder:
        training.between = lambda: torch.save(training.model.state_dict(), Path(folder) / "last.pt")
        training.over(loader_of(40, seed))


@program()
def _warm_up(seed: int, fixed: bool, steps: int) -> None:
    """A start of some seconds, and slow first steps."""
    time.sleep(6)
    training = Training(PACE, steps)
    training.after = lambda step: time.sleep(0.3 if step < 10 else 0)
    training.over(loader_of(steps, seed))


@program()
def _logs(seed: int, fixed: bool, steps: int) -> None:
    """A line each 10 steps, and a picture of 40 ms each 100."""
    training = Training(PACE, steps)

    def log(step: int) -> None:
        if step % 10 == 0:
            print(step, flush=True)
        if step % 100 == 0:
            time.sleep(0.04)

    training.after = log
    training.over(loader_of(steps, seed))


@program()
def _irregular(seed: int, fixed: bool, steps: int) -> None:
    """Pauses without a period, as a shared machine makes them."""
    generator = torch.Generator().manual_seed(seed)
    pauses = (torch.rand(steps + 1, generator=generator) < 0.03).tolist()
    training = Training(PACE, steps)
    training.after = lambda step: time.sleep(0.2) if pauses[step] else None
    training.over(loader_of(steps, seed))


@program()
def _workers_enough(seed: int, fixed: bool, steps: int) -> None:
    """Samples that take as long as the model, and workers that keep up."""
    Training(0.040, steps).over(loader_of(steps, seed, 0.040, num_workers=2, persistent_workers=True))


@program()
def _long_epochs(seed: int, fixed: bool, steps: int) -> None:
    """Workers that start anew, but seldom."""
    Training(PACE, steps).over(loader_of(160, seed, 0.010, num_workers=2))


@program()
def _adamw(seed: int, fixed: bool, steps: int) -> None:
    """AdamW over a few parameters that is neither fused nor foreach."""
    training = Training(0.004, steps * 3)
    training.optimizer = torch.optim.AdamW(training.model.parameters())
    training.over(loader_of(steps, seed))


@program()
def _metrics(seed: int, fixed: bool, steps: int) -> None:
    """Computes in the loop, as metrics do."""
    operations = counted(0.003)
    training = Training(PACE, steps)
    training.after = lambda step: spin(operations)
    training.over(loader_of(steps, seed))


@program(processes=2)
def _two_ranks(seed: int, fixed: bool, steps: int) -> None:
    """Two ranks that do the same."""
    train_in_ranks(lambda rank, training: loader_of(steps, seed + rank), steps)


@program(parameters="all,MemoryGrowth:points=8")
def _memory_fills(seed: int, fixed: bool, steps: int) -> None:
    """The system's cache of a file grows, and the last 200 losses are kept with their graphs."""
    kept: deque[torch.Tensor] = deque(maxlen=200)
    training = Training(None, steps, Deep(20, 0.040), least_s=110)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept.append(training.plain_loss(x, y))
        return kept[-1]

    block = bytes(1 << 18)
    with tempfile.TemporaryFile() as file:

        def read(step: int) -> None:
            file.write(block)
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
                sum(pages[i] for i in range(max(len(pages) - (1 << 22), 0), len(pages), 1 << 12))

        training.loss, training.after = loss, read
        training.over(loader_of(steps, seed))
