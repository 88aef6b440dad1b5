"""The programs: one planted bottleneck each, 30 to 60 % of a step, and a twin without it (`fixed`)."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from .parts import BATCH, Growing, Sharded, Sleeping, Training, counted, spin

__all__ = ["PROGRAMS", "Program"]

_PACE = 0.028  # seconds of a forward pass
Run = Callable[[int, bool, int], None]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    run
        Called with seed, whether it is the twin, and steps.
    rule, cause
        What has to be named; None for a healthy one.
    more
        Factor to the usual number of steps, for short steps.
    parameters
        Of the rule, so that its program need not run for minutes: `--rules` of `luff run`.
    processes
        Ranks that train together.
    needs
        What has to be there, or the program is skipped; e.g. "compiler".
    """

    run: Run
    rule: str | None = None
    cause: str | None = None
    more: float = 1
    parameters: str = ""
    processes: int = 1
    needs: tuple[str, ...] = field(default=())


PROGRAMS: dict[str, Program] = {}


def _program(rule: str | None = None, cause: str | None = None, **more: Any) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        name = run.__name__.lstrip("_")
        PROGRAMS[name] = Program(run, rule, cause, **more)
        return run

    return add


def _loader(steps: int, seed: int, seconds: float = 0.0, **more: Any) -> DataLoader[Any]:
    torch.manual_seed(seed)
    operations = more.pop("operations", 0)
    return DataLoader(Sleeping(steps * BATCH, seconds / BATCH, seed, operations), batch_size=BATCH, **more)


# Data ---------------------------------------------------------------------------------------------------------------


@_program("InputBound", "no_workers")
def _input_sleep(seed: int, fixed: bool, steps: int) -> None:
    """Samples that sleep, made in the training's own thread; the twin has as many workers as the rule names."""
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if fixed else {}
    Training(_PACE, steps).over(_loader(steps, seed, 0.040, **workers))


@_program("InputBound", "no_workers")
def _input_compute(seed: int, fixed: bool, steps: int) -> None:
    """Samples that compute; the twin has a worker, which has a core of its own."""
    workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if fixed else {}
    operations = counted(0.024) // BATCH
    Training(_PACE, steps).over(_loader(steps, seed, operations=operations, **workers))


@_program("InputBound", "no_workers")
def _collate(seed: int, fixed: bool, steps: int) -> None:
    """A collate function that sleeps; the twin's work is done by workers."""
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if fixed else {}

    def collate(samples: list[Any]) -> Any:
        time.sleep(0.036)
        return torch.utils.data.default_collate(samples)

    Training(_PACE, steps).over(_loader(steps, seed, collate_fn=collate, **workers))


@_program("InputBound", "workers_too_few")
def _too_few(seed: int, fixed: bool, steps: int) -> None:
    """One worker that makes a batch in twice the time of a step; the twin has two."""
    workers: dict[str, Any] = {"num_workers": 2 if fixed else 1, "persistent_workers": True}
    Training(_PACE, steps).over(_loader(steps, seed, 0.056, **workers))


@_program("InputBound", "slow_worker")
def _slow_worker(seed: int, fixed: bool, steps: int) -> None:
    """Four workers, of which one is slow; in the twin all are as fast."""
    torch.manual_seed(seed)
    slow = 0.060 if fixed else 0.290
    data = Sharded(steps + 64, 0.060, slow, seed)
    Training(_PACE, steps).over(DataLoader(data, batch_size=None, num_workers=4))


@_program("WorkersRestart", "start")
def _restart(seed: int, fixed: bool, steps: int) -> None:
    """Short epochs whose workers start anew."""
    loader = _loader(24, seed, 0.010, num_workers=2, persistent_workers=fixed)
    Training(0.010, steps * 6).over(loader)


@_program("InputBound", "own_loop")
def _own_loop(seed: int, fixed: bool, steps: int) -> None:
    """Batches of a generator, made in the training's thread; the twin makes them in another."""
    import queue
    import threading

    import luff

    torch.manual_seed(seed)
    training = Training(_PACE, steps)

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


# The loop -----------------------------------------------------------------------------------------------------------


@_program("LoggingStalls", "periodic")
def _logging_sleep(seed: int, fixed: bool, steps: int) -> None:
    """Logging that waits, each 20th step."""
    training = Training(_PACE, steps)
    training.after = lambda step: time.sleep(0.5) if not fixed and step % 20 == 0 else None
    training.over(_loader(steps, seed))


@_program("LoggingStalls", "periodic")
def _logging_pipe(seed: int, fixed: bool, steps: int) -> None:
    """Each 20th step, a line into a pipe whose reader is slow."""
    import threading

    receiving, sending = os.pipe()

    def read() -> None:
        while os.read(receiving, 1 << 16):
            time.sleep(0.5 if not fixed else 0)

    threading.Thread(target=read, daemon=True).start()
    line = b"x" * (1 << 17)
    training = Training(_PACE, steps)
    training.after = lambda step: os.write(sending, line) if step % 20 == 0 else None
    training.over(_loader(steps, seed))


@_program("CheckpointStalls", "checkpoint")
def _checkpoints(seed: int, fixed: bool, steps: int) -> None:
    """A checkpoint each 15 steps on a disk that is slow; the twin saves each 150."""
    training = Training(_PACE, steps)
    every = 150 if fixed else 15

    class Slow:
        """A file that waits at its end."""

        def __reduce__(self) -> Any:
            time.sleep(0.35)
            return (int, ())

    with tempfile.TemporaryDirectory() as folder:

        def save(step: int) -> None:
            if step % every == 0:
                torch.save({"model": training.model.state_dict(), "slow": Slow()}, Path(folder) / "last.pt")

        training.after = save
        training.over(_loader(steps, seed))


@_program("EvalShare", "eval")
def _evaluations(seed: int, fixed: bool, steps: int) -> None:
    """An evaluation of 20 batches each 10 steps; the twin's comes each 80."""
    training = Training(_PACE, steps * 2)
    held = _loader(20, seed + 1)
    every = 80 if fixed else 10

    def evaluate(step: int) -> None:
        if step % every:
            return
        training.model.eval()
        with torch.no_grad():
            for x, y in held:
                training.loss_fn(training.model(x), y).item()
        training.model.train()

    training.after = evaluate
    training.over(_loader(steps, seed))


@_program("GcPauses", "gc")
def _garbage(seed: int, fixed: bool, steps: int) -> None:
    """A full collection each second step among a million objects; the twin leaves them out of it."""
    kept = [[i] for i in range(400_000)]
    if fixed:
        gc.freeze()
    training = Training(_PACE, steps)
    training.after = lambda step: gc.collect() if step % 3 == 0 else None
    training.over(DataLoader(Growing(steps * BATCH, 0, seed), batch_size=BATCH))
    assert len(kept) == 400_000


@_program("DebugLeftOn", "on")
def _anomaly(seed: int, fixed: bool, steps: int) -> None:
    """Anomaly mode is on."""
    torch.autograd.set_detect_anomaly(not fixed)
    Training(_PACE, max(steps, 320)).over(_loader(steps, seed))


@_program("DebugLeftOn", "on")
def _profiler_on(seed: int, fixed: bool, steps: int) -> None:
    """A profiler without a schedule."""
    if fixed:
        Training(_PACE, max(steps, 320)).over(_loader(steps, seed))
        return
    with torch.autograd.profiler.profile():
        Training(_PACE, max(steps, 320)).over(_loader(steps, seed))


class _Many(nn.Module):
    """A model of 400 small parameters, of which a step uses all."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.ones(32)) for _ in range(400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds them up."""
        time.sleep(0.004)
        return x @ torch.stack(list(self.parts)).mean(0)


@_program("OptimizerSlow", "one_by_one", more=3)
def _one_by_one(seed: int, fixed: bool, steps: int) -> None:
    """AdamW over 400 parameters; the twin's is fused."""
    training = Training(0, steps * 3, _Many())
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4, fused=fixed or None)
    training.over(_loader(steps, seed))


@_program("Recompiles", "compile", needs=("compiler",))
def _recompiles(seed: int, fixed: bool, steps: int) -> None:
    """A compiled model that gets another length now and then."""
    torch._dynamo.config.cache_size_limit = 1000
    layers = torch.compile(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)), dynamic=False)

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(_PACE)
            return self.layers(x).squeeze(-1)

    training = Training(0, steps, Compiled())
    lengths = [2 + (i // 20) % 40 if not fixed else BATCH for i in range(steps + 1)]

    def batches() -> Any:
        for i in range(steps):
            x = torch.randn(lengths[i], 32)
            yield x, x.sum(1)

    torch.manual_seed(seed)
    training.over(list(batches()))  # type: ignore[arg-type]


@_program("FirstStepsSlow", "start", parameters="FirstStepsSlow:seconds=5")
def _slow_start(seed: int, fixed: bool, steps: int) -> None:
    """Data that is prepared for long before the first step."""
    time.sleep(0 if fixed else 12)
    Training(_PACE, steps).over(_loader(steps, seed))


# Ranks --------------------------------------------------------------------------------------------------------------


def _ranks(
    train: Callable[[int, Training], DataLoader[Any]], steps: int, pace: Callable[[int], float]
) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training(pace(rank), steps)
    loader = train(rank, training)
    training.model = nn.parallel.DistributedDataParallel(training.model)
    training.over(loader)
    dist.destroy_process_group()


@_program("Straggler", "input", processes=2)
def _straggler_input(seed: int, fixed: bool, steps: int) -> None:
    """One rank waits for its data."""

    def data(rank: int, training: Training) -> DataLoader[Any]:
        return _loader(steps, seed + rank, 0.030 if rank == 1 and not fixed else 0)

    _ranks(data, steps, lambda rank: _PACE)


@_program("Straggler", "own_work", processes=2)
def _straggler_logs(seed: int, fixed: bool, steps: int) -> None:
    """Rank 0 logs each step."""

    def data(rank: int, training: Training) -> DataLoader[Any]:
        training.after = lambda step: time.sleep(0.030 if rank == 0 and not fixed else 0)
        return _loader(steps, seed + rank)

    _ranks(data, steps, lambda rank: _PACE)


# Healthy ones that look suspicious ----------------------------------------------------------------------------------


@_program()
def _input_small(seed: int, fixed: bool, steps: int) -> None:
    """A loader without workers whose samples cost a little, 4 % of the step."""
    Training(0.035, steps).over(_loader(steps, seed, 0.0015))


@_program()
def _tiny(seed: int, fixed: bool, steps: int) -> None:
    """A tiny model, whose loader takes a large share of a step of a millisecond."""
    Training(0, steps * 10).over(_loader(2000, seed))


@_program()
def _evaluates(seed: int, fixed: bool, steps: int) -> None:
    """Evaluations that take a quarter of the time."""
    training = Training(_PACE, steps)
    held = _loader(20, seed + 1)

    def evaluate(step: int) -> None:
        if step % 60 == 0:
            training.model.eval()
            with torch.no_grad():
                for x, y in held:
                    training.loss_fn(training.model(x), y).item()
            training.model.train()

    training.after = evaluate
    training.over(_loader(steps, seed))


@_program()
def _saves(seed: int, fixed: bool, steps: int) -> None:
    """A checkpoint at the end of each epoch."""
    training = Training(_PACE, steps)
    with tempfile.TemporaryDirectory() as folder:
        training.between = lambda: torch.save(training.model.state_dict(), Path(folder) / "last.pt")
        training.over(_loader(40, seed))


@_program()
def _warm_up(seed: int, fixed: bool, steps: int) -> None:
    """A start of some seconds, and slow first steps."""
    time.sleep(6)
    training = Training(_PACE, steps)
    training.after = lambda step: time.sleep(0.3 if step < 10 else 0)
    training.over(_loader(steps, seed))


@_program()
def _logs(seed: int, fixed: bool, steps: int) -> None:
    """A line each 10 steps, and a picture of 40 ms each 100."""
    training = Training(_PACE, steps)

    def log(step: int) -> None:
        if step % 10 == 0:
            print(step, flush=True)
        if step % 100 == 0:
            time.sleep(0.04)

    training.after = log
    training.over(_loader(steps, seed))


@_program()
def _irregular(seed: int, fixed: bool, steps: int) -> None:
    """Pauses without a period, as a shared machine makes them."""
    generator = torch.Generator().manual_seed(seed)
    pauses = (torch.rand(steps + 1, generator=generator) < 0.03).tolist()
    training = Training(_PACE, steps)
    training.after = lambda step: time.sleep(0.2) if pauses[step] else None
    training.over(_loader(steps, seed))


@_program()
def _workers_enough(seed: int, fixed: bool, steps: int) -> None:
    """Samples that take as long as the model, and workers that keep up."""
    Training(0.040, steps).over(_loader(steps, seed, 0.040, num_workers=2, persistent_workers=True))


@_program()
def _long_epochs(seed: int, fixed: bool, steps: int) -> None:
    """Workers that start anew, but seldom."""
    Training(_PACE, steps).over(_loader(160, seed, 0.010, num_workers=2))


@_program()
def _adamw(seed: int, fixed: bool, steps: int) -> None:
    """AdamW over a few parameters that is neither fused nor foreach."""
    training = Training(0.004, steps * 3)
    training.optimizer = torch.optim.AdamW(training.model.parameters())
    training.over(_loader(steps, seed))


@_program()
def _metrics(seed: int, fixed: bool, steps: int) -> None:
    """Computes in the loop, as metrics do."""
    operations = counted(0.003)
    training = Training(_PACE, steps)
    training.after = lambda step: spin(operations)
    training.over(_loader(steps, seed))


@_program(processes=2)
def _two_ranks(seed: int, fixed: bool, steps: int) -> None:
    """Two ranks that do the same."""
    _ranks(lambda rank, training: _loader(steps, seed + rank), steps, lambda rank: _PACE)
