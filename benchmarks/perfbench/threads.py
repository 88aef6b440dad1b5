"""More threads than cores."""

from __future__ import annotations

import os

import torch
from torch import nn

from ._program import loader_of, program
from .parts import Training


@program("CpuOversubscribed", "threads", contends=True, alone=True)
def _threads(seed: int, fixed: bool, steps: int) -> None:
    """Eight threads for each core; the twin has one for each."""
    torch.set_num_threads(len(os.sched_getaffinity(0)) * (1 if fixed else 8))

    class Wide(nn.Module):
        """A model whose operations are long enough to be divided among threads, and short enough to end together."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(32, 512), *(nn.Linear(512, 512) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Computes over many rows."""
            return self.layers(x.repeat(32, 1)).mean(1)[: len(x)]

    Training(None, steps, Wide(), least_s=50).over(loader_of(steps, seed))
