"""Memory that grows until it is used up, or that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from ._program import PACE, loader_of, program
from .parts import BATCH, Deep, Sleeping, Training

#: The rule judges five minutes by default.
_SOON = "all,MemoryGrowth:points=8"


@program("MemoryGrowth", "graphs_kept", parameters=_SOON)
def _graph_kept(seed: int, fixed: bool, steps: int) -> None:
    """Each loss is kept with its graph; the twin keeps the number."""
    kept: list[torch.Tensor | float] = []
    training = Training(None, steps, Deep(60, 0.040), least_s=110)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = training.plain_loss(x, y)
        kept.append(value.item() if fixed else value)
        return value

    training.loss = loss
    training.over(loader_of(160, seed))


@program("MemoryGrowth", "graphs_kept", parameters=_SOON)
def _graph_summed(seed: int, fixed: bool, steps: int) -> None:
    """The losses are added up for a mean, each with its graph; the twin adds up numbers."""
    total: list[torch.Tensor | float] = [0.0]
    training = Training(None, steps, Deep(60, 0.040), least_s=110)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = training.plain_loss(x, y)
        total[0] += value.item() if fixed else value
        return value

    training.loss = loss
    training.over(loader_of(160, seed))


class _Cached(Sleeping):
    """Keeps what it made of each sample, for each time anew; `bounded` keeps the last hundred."""

    def __init__(self, samples: int, seed: int, bounded: bool) -> None:
        super().__init__(samples, 0, seed)
        self.cache: dict[int, torch.Tensor] = {}
        self.asked, self.bounded = 0, bounded

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked += 1
        if self.bounded:
            self.cache.pop(self.asked - 100, None)
        self.cache[self.asked] = torch.ones(1 << 13)  # 32 KiB
        return super().__getitem__(i)


@program("MemoryGrowth", "grows", parameters=_SOON)
def _cache_grows(seed: int, fixed: bool, steps: int) -> None:
    """A dataset caches augmented samples under keys that do not come back; the twin's cache is bounded."""
    data = _Cached(160 * BATCH, seed, fixed)
    Training(PACE, steps, least_s=110).over(DataLoader(data, batch_size=BATCH))


@program("Swapping", "swaps", needs=("swap",), alone=True)
def _swapping(seed: int, fixed: bool, steps: int) -> None:
    """A limit of the control group below what the steps touch, so that pages come and go; the twin has none."""
    kept = torch.ones(1 << 27)  # 512 MiB
    if not fixed:
        group = Path("/sys/fs/cgroup") / f"luff-perfbench-{os.getpid()}"
        group.mkdir()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        (group / "memory.max").write_text(str(resident - (kept.numel() * 4) // 3))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    pages = kept.view(-1, 1024)[:, 0]
    training = Training(PACE, steps, least_s=60)
    training.after = lambda step: pages[step % 16 :: 16].add_(1)
    training.over(loader_of(steps, seed))
