"""Trainings that wait for their data."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ._program import PACE, loader_of, program
from .parts import BATCH, Direct, Sharded, Training, counted


@program("InputBound", "no_workers")
def _input_sleep(seed: int, fixed: bool, steps: int) -> None:
    """Samples that sleep, made in the training's own thread; the twin has as many workers as the rule names."""
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if fixed else {}
    Training(PACE, steps).over(loader_of(steps, seed, 0.040, **workers))


@program("InputBound", "no_workers", alone=True)
def _input_compute(seed: int, fixed: bool, steps: int) -> None:
    """Samples that compute; the twin has a worker, which has a core of its own."""
    workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if fixed else {}
    operations = counted(0.024) // BATCH
    Training(PACE, steps).over(loader_of(steps, seed, operations=operations, **workers))


@program("InputBound", "no_workers")
def _collate(seed: int, fixed: bool, steps: int) -> None:
    """A collate function that sleeps; the twin's work is done by workers."""
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if fixed else {}

    def collate(samples: list[Any]) -> Any:
        time.sleep(0.036)
        return torch.utils.data.default_collate(samples)

    Training(PACE, steps).over(loader_of(steps, seed, collate_fn=collate, **workers))


@program("InputBound", "workers_too_few")
def _too_few(seed: int, fixed: bool, steps: int) -> None:
    """One worker that makes a batch in twice the time of a step; the twin has two."""
    workers: dict[str, Any] = {"num_workers": 2 if fixed else 1, "persistent_workers": True}
    Training(PACE, steps).over(loader_of(steps, seed, 0.056, **workers))


@program("InputBound", "slow_worker")
def _slow_worker(seed: int, fixed: bool, steps: int) -> None:
    """Four workers, of which one is slow; in the twin all are as fast."""
    torch.manual_seed(seed)
    slow = 0.060 if fixed else 0.290
    data = Sharded(steps + 64, 0.060, slow, seed)
    Training(PACE, steps).over(DataLoader(data, batch_size=None, num_workers=4))


@program("WorkersRestart", "start")
def _restart(seed: int, fixed: bool, steps: int) -> None:
    """Short epochs whose workers start anew, and open their files for a while; the twin's stay."""
    loader = loader_of(
        24,
        seed,
        0.010,
        num_workers=2,
        persistent_workers=fixed,
        worker_init_fn=lambda worker: time.sleep(0.15),
    )
    Training(0.010, steps * 4).over(loader)


@program("WorkersRestart", "start")
def _many_workers(seed: int, fixed: bool, steps: int) -> None:
    """Sixteen workers, whose start takes as long as a third of an epoch; the twin's two stay.

    Epochs are short and many: on a quiet machine a worker starts in a few milliseconds, and below 5 s in the whole run
    nothing is said of starts.
    """
    workers = 2 if fixed else 16
    loader = loader_of(24, seed, 0.010, num_workers=workers, persistent_workers=fixed)
    Training(0.010, steps * 10).over(loader)


@program("StorageBound", "reads")
def _storage(seed: int, fixed: bool, steps: int) -> None:
    """Samples that are read past the system's cache; the twin's are in memory."""
    with tempfile.TemporaryDirectory() as folder:
        data = Direct(Path(folder) / "data", 1 << 16, 0.040 / BATCH, seed, fixed)
        Training(PACE, steps, least_s=50).over(DataLoader(data, batch_size=BATCH))


@program("InputBound", "own_loop")
def _own_loop(seed: int, fixed: bool, steps: int) -> None:
    """Batches of a generator, made in the training's thread; the twin makes them in another."""
    import queue
    import threading

    import luff

    torch.manual_seed(seed)
    training = Training(PACE, steps)

    def batches() -> Any:
        for _ in range(steps):
            time.sleep(0.024)
            x = torch.randn(BATCH, 32)
            yield x, x.sum(1)

    def prefetched() -> Any:
        ready: queue.Queue[Any] = queue.Queue(4)

        def fill() -> None:
            for batch in batches():
                ready.put(batch)

        threading.Thread(target=fill, daemon=True).start()
        for _ in range(steps):
            yield ready.get()

    training.over(luff.wait(prefetched() if fixed else batches()))  # type: ignore[arg-type]
