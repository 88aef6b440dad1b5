"""Trainings that stand still for a while: the place must be named, and what is waited for."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from ._program import PACE, loader_of, program
from .parts import BATCH, Sleeping, Training
from .ranks import train_in_ranks

_HANG, _AT = 14.0, 60  # seconds, and the step at which
_SOON: dict[str, Any] = {
    "parameters": "all,StalledTrainingRule:threshold=8",
    "settings": "stalled_after_s = 2",
}


@program("StalledTrainingRule", "stalled", says="waits for a lock", **_SOON)
def _hang_lock(seed: int, fixed: bool, steps: int) -> None:
    """Another thread holds a lock."""
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(_HANG)

    held = threading.Event()

    def wait(step: int) -> None:
        if step == _AT and not fixed:
            threading.Thread(target=hold, daemon=True).start()
            held.wait()
            with lock:
                pass

    training = Training(PACE, steps // 2)
    training.after = wait
    training.over(loader_of(steps, seed))


class _Waiting(Sleeping):
    """Samples of which one waits for a pipe."""

    def __init__(self, samples: int, seed: int, pipe: int, at: int) -> None:
        super().__init__(samples, 0, seed)
        self.pipe, self.at = pipe, at

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if i == self.at:
            os.read(self.pipe, 1)
        return super().__getitem__(i)


@program("StalledTrainingRule", "stalled", says="__getitem__", **_SOON)
def _hang_loader(seed: int, fixed: bool, steps: int) -> None:
    """A worker of the loader waits for a pipe."""
    reads, writes = os.pipe()

    def write(step: int) -> None:
        if step == _AT - 10 and not fixed:
            threading.Thread(target=release, daemon=True).start()

    def release() -> None:
        time.sleep(_HANG)
        os.write(writes, b"x")

    training = Training(PACE, steps // 2)
    training.after = write
    data = _Waiting(steps * BATCH, seed, reads, -1 if fixed else _AT * BATCH)
    training.over(DataLoader(data, batch_size=BATCH, num_workers=2))


@program("StalledTrainingRule", "stalled", says="rank 1 is elsewhere", processes=2, **_SOON)
def _hang_collective(seed: int, fixed: bool, steps: int) -> None:
    """Rank 1 does something else while rank 0 waits for it in a collective operation."""
    import torch.distributed as dist

    def data(rank: int, training: Training) -> DataLoader[Any]:
        def meet(step: int) -> None:
            if step == _AT:
                if rank == 1 and not fixed:
                    time.sleep(_HANG)
                dist.all_reduce(torch.ones(3))

        training.after = meet
        return loader_of(steps, seed + rank)

    train_in_ranks(data, steps // 2)
