"""What programs are made of. Waits are planted by sleeping, which needs no core: a busy machine changes little."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

__all__ = ["BATCH", "Growing", "Sharded", "Sleeping", "Training", "counted", "spin"]

BATCH = 8
_WIDTH = 32


def spin(operations: int) -> int:
    """Computes for a given number of operations; one is some 40 ns on a core of 2023."""
    value = 1
    for _ in range(operations):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return value


def counted(seconds: float) -> int:
    """Returns how many operations of `spin` take so many seconds of CPU time on this machine, now."""
    began = time.process_time()
    spin(200_000)
    return max(int(200_000 * seconds / max(time.process_time() - began, 1e-6)), 1)


class Sleeping(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take a while, as those that are read from a slow disk do; or that compute."""

    def __init__(self, samples: int, seconds: float, seed: int, operations: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(samples, _WIDTH, generator=generator)
        self.seconds, self.operations = seconds, operations

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.seconds > 0:
            time.sleep(self.seconds)
        if self.operations:
            spin(self.operations)
        return self.x[i], self.x[i].sum()


class Growing(Sleeping):
    """Samples that are kept as Python objects that refer to each other in circles."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        ring: list[Any] = [i]
        ring.append(ring)
        return super().__getitem__(i)


class Sharded(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """A stream of batches; the last worker's shard is slower."""

    def __init__(self, batches: int, seconds: float, slow: float, seed: int) -> None:
        self.batches, self.seconds, self.slow, self.seed = batches, seconds, slow, seed

    def __iter__(self) -> Any:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        generator = torch.Generator().manual_seed(self.seed + number)
        for _ in range(-(-self.batches // count) + 1):
            time.sleep(self.slow if number == count - 1 else self.seconds)
            x = torch.randn(BATCH, _WIDTH, generator=generator)
            yield x, x.sum(1)


class Paced(nn.Module):
    """A model whose forward pass takes a given time, most of which it sleeps, as one that waits for a device does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleeps, and computes."""
        time.sleep(self.seconds)
        return self.layers(x).squeeze(-1)


class Training:
    """A plain loop over a loader, with hooks for what programs plant."""

    def __init__(self, seconds: float, steps: int, model: nn.Module | None = None) -> None:
        self.model = Paced(seconds) if model is None else model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.MSELoss()
        self.steps, self.done = steps, 0
        self.after: Callable[[int], object] = lambda step: None  # each step
        self.between: Callable[[], object] = lambda: None  # epochs

    def over(self, loader: DataLoader[Any]) -> None:
        """Trains until all steps are done."""
        while self.done < self.steps:
            for x, y in loader:
                self.optimizer.zero_grad()
                self.loss_fn(self.model(x), y).backward()
                self.optimizer.step()
                self.done += 1
                self.after(self.done)
                if self.done >= self.steps:
                    return
            self.between()
