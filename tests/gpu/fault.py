"""Trains a program of the fault bench on a device: `fault.py ID cpu|cuda`. Nothing is attached by it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from faultbench import core
from faultbench.programs import RUNS


class Moved:
    """Batches of a loader, on a device."""

    def __init__(self, loader: Any, device: str) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        for x, y in self._loader:
            yield x.to(self._device), y.to(self._device)


def main() -> None:
    program, device = sys.argv[1:]
    sys.argv = ["train.py"]  # hides from a watcher which program is trained
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    job = RUNS[program].build(0, False)
    core.seed_all(1)
    if device != "cpu":
        job.model.to(device)  # in place: the optimizer keeps its parameters
        job.loss_fn.to(device)
        job.train_loader, job.val_loader = Moved(job.train_loader, device), Moved(job.val_loader, device)
    core.train(job)


if __name__ == "__main__":
    main()
