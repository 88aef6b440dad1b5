"""What programs are made of. Waits are planted by sleeping, which needs no core: a busy machine changes little."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

__all__ = [
    "BATCH",
    "PIECE",
    "Deep",
    "Direct",
    "Growing",
    "Sharded",
    "Sleeping",
    "Trace",
    "Training",
    "counted",
    "counted_writes",
    "spin",
]

BATCH = 8
PIECE = b"x" * (1 << 18)  # few and large: after each the thread needs a core again
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


def counted_writes(file: int, seconds: float) -> int:
    """Returns how many pieces, each written through to the disk, take so many seconds on this machine, now."""
    began, written = time.perf_counter(), 0
    while time.perf_counter() - began < 1:
        os.write(file, PIECE)
        os.fsync(file)
        written += 1
    return max(int(written * seconds / (time.perf_counter() - began)), 1)


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


class Direct(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are read from the disk past the system's cache; or, `cached`, from memory.

    Parameters
    ----------
    path
        Of a file, which is made.
    seconds
        That the reads of one sample take, on this machine, now.
    """

    _BLOCK, _BLOCKS = 1 << 20, 64  # few and large: after each read the thread needs a core again

    def __init__(self, path: Path, samples: int, seconds: float, seed: int, cached: bool) -> None:
        path.write_bytes(os.urandom(self._BLOCK) * self._BLOCKS)
        os.sync()
        self._file = os.open(path, os.O_RDONLY | (0 if cached else os.O_DIRECT))
        self._buffer = mmap.mmap(-1, self._BLOCK)  # aligned, as direct reads want it
        self._samples, self._reads = samples, 1
        self._at = torch.randint(
            self._BLOCKS, (4096,), generator=torch.Generator().manual_seed(seed)
        ).tolist()
        if not cached:
            began = time.perf_counter()
            for i in range(100):
                self._read(i)
            self._reads = max(round(100 * seconds / (time.perf_counter() - began)), 1)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        for read in range(self._reads):
            self._read(i * self._reads + read)
        x = torch.frombuffer(self._buffer, dtype=torch.uint8, count=_WIDTH).float() / 255
        return x, x.sum()

    def _read(self, i: int) -> None:
        os.preadv(self._file, [self._buffer], self._at[i % len(self._at)] * self._BLOCK)


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


class Deep(nn.Module):
    """A narrow model of many layers: its graph is large beside its values."""

    def __init__(self, layers: int, seconds: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers))
        self.last = nn.Linear(_WIDTH, 1)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleeps, and computes."""
        time.sleep(self.seconds)
        for block in self.blocks:
            x = x + 0.1 * torch.tanh(block(x))
        return self.last(x).squeeze(-1)


def _marks_of_peer() -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Returns what marks a step for the peer of `./dev bench perf`, which needs it in the loop; else nothing."""
    if os.environ.get("LUFF_PERFBENCH_PEER") != "traceml":
        return lambda model: nullcontext()
    import traceml_ai

    traceml_ai.init(mode="auto")
    return traceml_ai.trace_step  # type: ignore[no-any-return]


class Trace:
    """The trace that each program of this process asks for.

    Attributes
    ----------
    at
        After so many steps; 0: at none.
    stacks
        With functions of Python.
    """

    at = 0
    stacks = False

    @classmethod
    def ask(cls) -> None:
        """Asks for it, as a user would in the loop.

        Raises
        ------
        RuntimeError
            If it is refused: what the program has planted could not be named.
        """
        import luff

        if why := luff.trace(3, stacks=cls.stacks):
            raise RuntimeError(f"no trace: {why}")


class Training:
    """A plain loop over a loader, with hooks for what programs plant.

    Parameters
    ----------
    seconds
        That the forward pass sleeps; for a model of its own: None.
    least_s
        Seconds for which it trains at least, however many steps these take: rules on samples of the machine judge
        windows of ten seconds.
    """

    def __init__(
        self, seconds: float | None, steps: int, model: nn.Module | None = None, least_s: float = 0
    ) -> None:
        self.model = Paced(seconds or 0) if model is None else model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.MSELoss()
        self.steps, self.done, self.least_s = steps, 0, least_s
        self.loss = self.plain_loss
        self.after: Callable[[int], object] = lambda step: None  # each step
        self.between: Callable[[], object] = lambda: None  # epochs

    def plain_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch."""
        return self.loss_fn(self.model(x), y)

    def evaluate(self, held: DataLoader[Any]) -> None:
        """Takes the loss over rows that are not trained on, batch by batch."""
        self.model.eval()
        with torch.no_grad():
            for x, y in held:
                self.loss_fn(self.model(x), y).item()
        self.model.train()

    def over(self, loader: DataLoader[Any]) -> None:
        """Trains until all steps are done and the time is over."""
        began, marks = time.monotonic(), _marks_of_peer()
        while True:
            for x, y in loader:
                with marks(self.model):
                    self.optimizer.zero_grad()
                    self.loss(x, y).backward()
                    self.optimizer.step()
                    self.done += 1
                    self.after(self.done)
                    if self.done == Trace.at:
                        Trace.ask()
                if self.done >= self.steps and time.monotonic() - began >= self.least_s:
                    return
            self.between()
