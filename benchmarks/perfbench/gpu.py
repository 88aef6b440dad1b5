"""Programs for a GPU. With `LUFF_PERFBENCH_DEVICE=cpu` small ones run without it, which shows that they do run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._program import program
from .parts import Training

_ROWS, _WIDTH = 512, 1024
_LARGE = 1 << (14 if os.environ.get("LUFF_PERFBENCH_DEVICE", "cuda") == "cuda" else 6)  # rows
_GPU: dict[str, Any] = {"needs": ("gpu",), "alone": True}
_TRACED = {**_GPU, "trace": "operators"}


def _device() -> torch.device:
    return torch.device(os.environ.get("LUFF_PERFBENCH_DEVICE", "cuda"))


def _model(layers: int = 4, width: int = _WIDTH) -> nn.Module:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, 1), nn.Flatten(0)).to(_device())


def _batches(steps: int, seed: int, rows: int = _ROWS, width: int = _WIDTH) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(rows, width, generator=generator) for _ in range(8)]
    on_device = [(x.to(_device()), x.sum(1).to(_device())) for x in made]
    return [on_device[i % 8] for i in range(steps)]


def _train(steps: int, seed: int, model: nn.Module, batches: Any = None, **hooks: Callable[..., Any]) -> None:
    training = Training(None, steps, model)
    for name, hook in hooks.items():
        setattr(training, name, hook)
    training.over(_batches(steps, seed) if batches is None else batches)


@program("HostSync", "item", **{**_TRACED, "trace": "stacks"})
def _gpu_item(seed: int, fixed: bool, steps: int) -> None:
    """Twenty values are read off the device in each step; the twin reads one in each 50th."""
    model = _model()
    weights = list(model.parameters())

    def read(step: int) -> None:
        if not fixed or step % 50 == 0:
            for i in range(1 if fixed else 20):
                weights[i % len(weights)].sum().item()

    _train(steps * 4, seed, model, after=read)


@program("PageableCopy", "pageable", **_TRACED)
def _gpu_pageable(seed: int, fixed: bool, steps: int) -> None:
    """Batches of 64 MiB are copied from memory that is not pinned; the twin's is."""
    host = [torch.randn(_LARGE, _WIDTH, generator=torch.Generator().manual_seed(seed)) for _ in range(2)]
    if fixed and _device().type == "cuda":
        host = [x.pin_memory() for x in host]

    def batches() -> Iterator[Any]:
        for i in range(steps):
            x = host[i % 2].to(_device(), non_blocking=fixed)
            yield x, x.sum(1)

    _train(steps, seed, _model(), list(batches()) if steps < 8 else batches())


@program("LaunchBound", "small_kernels", **_TRACED)
def _gpu_small_kernels(seed: int, fixed: bool, steps: int) -> None:
    """Two hundred layers of 64 units, and an optimizer that takes each parameter by itself; the twin has two."""
    model = _model(2 if fixed else 200, 64)
    training = Training(None, steps, model)
    training.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=fixed)
    training.over(_batches(steps, seed, 64, 64))  # type: ignore[arg-type]


def _products(steps: int, seed: int, narrow: bool) -> None:
    """Large products; `narrow`: in bfloat16."""
    training = Training(None, steps, _model(6, 4096))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(_device().type, dtype=torch.bfloat16, enabled=narrow):
            return training.plain_loss(x, y)

    training.loss = loss
    training.over(_batches(steps, seed, _LARGE // 4, 4096))  # type: ignore[arg-type]


@program("Tf32Off", "float32", **_TRACED)
def _gpu_float32(seed: int, fixed: bool, steps: int) -> None:
    """Large products in full float32; the twin's are in bfloat16: rounded to TF32 they would be the next program's."""
    torch.set_float32_matmul_precision("highest")
    _products(steps, seed, fixed)


@program("HalfPrecisionOff", "tf32", **_TRACED)
def _gpu_tf32(seed: int, fixed: bool, steps: int) -> None:
    """Large products that are rounded to TF32; the twin's are in bfloat16."""
    torch.set_float32_matmul_precision("high")
    _products(steps, seed, fixed)


@program("AllocatorThrash", "empty_cache", **_TRACED)
def _gpu_empty_cache(seed: int, fixed: bool, steps: int) -> None:
    """The allocator's cache is emptied in each step."""

    def empty(step: int) -> None:
        if not fixed and _device().type == "cuda":
            torch.cuda.empty_cache()

    _train(steps, seed, _model(8), after=empty)


@program("CopyNotOverlapped", "same_stream", **_TRACED)
def _gpu_copy_same_stream(seed: int, fixed: bool, steps: int) -> None:
    """Batches are copied on the stream that computes; the twin copies the next one on a stream beside it."""
    cuda = _device().type == "cuda"
    x = torch.randn(_LARGE, _WIDTH, generator=torch.Generator().manual_seed(seed))
    host = x.pin_memory() if cuda else x
    beside = torch.cuda.Stream() if cuda and fixed else None  # type: ignore[no-untyped-call]

    def copied() -> torch.Tensor:
        if beside is None:
            return host.to(_device(), non_blocking=True)
        with torch.cuda.stream(beside):
            return host.to(_device(), non_blocking=True)

    def batches() -> Iterator[Any]:
        following = copied()
        for _ in range(steps):
            if beside is not None:
                torch.cuda.current_stream().wait_stream(beside)
            now = following
            if beside is not None:
                now.record_stream(torch.cuda.current_stream())
            following = copied()
            yield now, now.sum(1)

    _train(steps, seed, _model(12), batches())


@program("DebugLeftOn", "on", **_GPU)
def _gpu_anomaly(seed: int, fixed: bool, steps: int) -> None:
    """Anomaly mode is on."""
    torch.autograd.set_detect_anomaly(not fixed)
    _train(max(steps, 320) if steps > 8 else steps, seed, _model(32, 256), _batches(320, seed, 512, 256))


@program("MemoryGrowth", "graphs_kept", parameters="all,MemoryGrowth:points=8", **_GPU)
def _gpu_graph_kept(seed: int, fixed: bool, steps: int) -> None:
    """Each loss is kept on the device with its graph; the twin keeps the number."""
    kept: list[Any] = []
    training = Training(None, steps, _model(4), least_s=110 if steps > 8 else 0)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = training.plain_loss(x, y)
        kept.append(value.detach() if fixed else value * 1.0)
        return value

    training.loss = loss
    training.over(_batches(64, seed))  # type: ignore[arg-type]
