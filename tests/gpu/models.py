"""Models of usual sizes for `./dev gpu`, and what a step of them costs with Luff. Needs torch and nothing else."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

Row = dict[str, Any]
Step = Callable[[], None]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.body(x) + self.shortcut(x))
        return out


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Module:
    """ResNet-50 (He et al. 2015) by default."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Gpt(nn.Module):
    """A causal transformer with the sizes of GPT-2 or GPT-3."""

    def __init__(self, layers: int, width: int, heads: int, words: int = 50_304, length: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def images(model: nn.Module, batch: int, size: int, device: str) -> Step:
    """A training step on random images."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(0, 10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def tokens(model: nn.Module, batch: int, length: int, words: int, device: str) -> Step:
    """A training step on random tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    x = torch.randint(0, words, (batch, length), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()

    return step


def milliseconds(step: Step, repeats: int, device: str) -> float:
    """Returns how long so many steps take together, on the device where there is one."""
    if device != "cuda":
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        return (time.perf_counter() - begin) * 1e3
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last))


def compared(bare: Step, watched: Step, turns: int, repeats: int, device: str) -> float:
    """Returns the median time of blocks of watched steps over that of bare ones, in turns; two turns warm up."""
    times: dict[str, list[float]] = {"bare": [], "watched": []}
    for turn in range(turns + 2):
        for name, step in (("bare", bare), ("watched", watched)):
            took = milliseconds(step, repeats, device)
            if turn >= 2:
                times[name].append(took)
    return statistics.median(times["watched"]) / statistics.median(times["bare"])


SUMMARIES = {
    name: {"roles": [role], "forms": ["summary"], "save": {"save_interval": 1}}
    for name, role in (("w", "weight"), ("b", "bias"), ("g", "gradient"))
}
#: Name: how a model is made, how it is trained, GiB of device memory that two of them need.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, str], Step], float]] = {
    "resnet50, batch 128": (resnet, lambda m, d: images(m, 128, 224, d), 24),
    "gpt 124 M, 8,192 tokens": (lambda: Gpt(12, 768, 12), lambda m, d: tokens(m, 8, 1024, 50_304, d), 30),
    "gpt 1.3 G, 8,192 tokens": (lambda: Gpt(24, 2048, 16), lambda m, d: tokens(m, 8, 1024, 50_304, d), 74),
}


def models(folder: Path, which: Any = None, device: str = "cuda", turns: int = 6) -> Iterator[Row]:
    """Statistics of weights and gradients at every step of models of usual sizes."""
    import luff.torch

    for name, (make, train, gib) in (which or MODELS).items():
        check = f"w+g every step, {name}"
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0] / 2**30
            if free < gib:
                why = f"two of them need {gib} GiB of device memory, {free:.0f} are free"
                yield {"check": check, "status": "skipped", "detail": why}
                continue
        steps = {}
        torch.manual_seed(0)
        with torch.device(device):  # where weights are drawn in no time
            bare, model = make(), make()
        steps["bare"] = train(bare, device)
        run = folder / name.split(",")[0].replace(" ", "_")
        hook = luff.torch.attach(model, run=str(run), collections=SUMMARIES, accelerators=True)
        steps["watched"] = train(model, device)
        ratio = compared(steps["bare"], steps["watched"], turns, 5, device)
        device_ms = hook.health()["counters"]["device_ns"] / 1e6 / (5 * (turns + 2))
        hook.close()
        yield {
            "check": check,
            "status": "passed" if ratio <= 1.02 else "failed",
            "detail": f"{device_ms:.3f} ms of device a step",
            "value": ratio,
            "gate": 1.02,
        }
        del steps, bare, model, hook
