"""Ranks that wait for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ._program import PACE, loader_of, program
from .parts import Training, counted, spin


def train_in_ranks(train: Callable[[int, Training], DataLoader[Any]], steps: int) -> None:
    """Trains with what `train` returns for this rank, which may change the training, too."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training(PACE, steps)
    loader = train(rank, training)
    training.model = nn.parallel.DistributedDataParallel(training.model)
    training.over(loader)
    dist.destroy_process_group()


@program("Straggler", "input", processes=2)
def _straggler_input(seed: int, fixed: bool, steps: int) -> None:
    """One rank waits for its data."""

    def data(rank: int, training: Training) -> DataLoader[Any]:
        return loader_of(steps, seed + rank, 0.030 if rank == 1 and not fixed else 0)

    train_in_ranks(data, steps)


@program("Straggler", "own_work", processes=2)
def _straggler_logs(seed: int, fixed: bool, steps: int) -> None:
    """Rank 0 logs each step."""

    def data(rank: int, training: Training) -> DataLoader[Any]:
        training.after = lambda step: time.sleep(0.030 if rank == 0 and not fixed else 0)
        return loader_of(steps, seed + rank)

    train_in_ranks(data, steps)


@program("Straggler", "more_work", processes=2, alone=True)
def _imbalance(seed: int, fixed: bool, steps: int) -> None:
    """One rank computes for longer, as over batches that are larger."""

    def data(rank: int, training: Training) -> DataLoader[Any]:
        operations = 0 if rank == 0 or fixed else counted(0.025)
        plain = training.model.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            spin(operations)
            return plain(x)  # type: ignore[no-any-return]

        training.model.forward = forward  # type: ignore[method-assign]
        return loader_of(steps, seed + rank)

    train_in_ranks(data, steps)
