"""The programs. Waits are planted by sleeping, which needs no core, so that a busy machine changes little."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["PROGRAMS", "Program"]

_WIDTH, _BATCH = 32, 8


class _Sleeping(Dataset):
    """Samples that take a while, as those that are read from a slow disk do."""

    def __init__(self, samples: int, seconds: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(samples, _WIDTH, generator=generator)
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.seconds > 0:
            time.sleep(self.seconds)
        return self.x[i], self.x[i].sum()


class _Paced(nn.Module):
    """A model whose forward pass takes a given time, most of which it sleeps, as one that waits for a device does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layers(x).squeeze(-1)


def _train(batches: DataLoader, steps: int, seconds: float) -> None:
    model = _Paced(seconds)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    done = 0
    while done < steps:
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
            done += 1
            if done >= steps:
                return


def _input_sleep(seed: int, fixed: bool, steps: int) -> None:
    """Samples that sleep, made in the training's own thread; the twin has as many workers as the rule names."""
    torch.manual_seed(seed)
    data = _Sleeping(steps * _BATCH, 0.040 / _BATCH, seed)
    workers = {"num_workers": 2, "persistent_workers": True} if fixed else {}
    _train(DataLoader(data, batch_size=_BATCH, **workers), steps, 0.028)


def _input_small(seed: int, fixed: bool, steps: int) -> None:
    """Healthy: a loader without workers whose samples cost a little, 4 % of the step."""
    torch.manual_seed(seed)
    data = _Sleeping(steps * _BATCH, 0.0015 / _BATCH, seed)
    _train(DataLoader(data, batch_size=_BATCH), steps, 0.035)


def _tiny(seed: int, fixed: bool, steps: int) -> None:
    """Healthy: a tiny model, whose loader takes a large share of a step of a millisecond."""
    torch.manual_seed(seed)
    _train(DataLoader(_Sleeping(2000 * _BATCH, 0, seed), batch_size=_BATCH), steps * 10, 0)


@dataclass(frozen=True)
class Program:
    """One program. `rule`: what has to be named; None for a healthy one."""

    run: Callable[[int, bool, int], None]
    rule: str | None


PROGRAMS = {
    "input_sleep": Program(_input_sleep, "InputBound"),
    "input_small": Program(_input_small, None),
    "tiny": Program(_tiny, None),
}
