"""Three small CPU workloads: `mlp`, `resnet18` and `gpt`.

They span the ratios "bytes captured per step / step time" seen on accelerators: `mlp` is bound by its weights (many
bytes per operation), `resnet18` by activations and arithmetic, and `gpt` lies between the two. The environment
variables BATCH and WIDTH change their size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

NAMES = ("mlp", "resnet18", "gpt")
WRONG_LABELS = 0.33  # share of random labels, so that the loss never vanishes


class Workload(NamedTuple):
    """Everything that a training loop needs."""

    model: nn.Module
    loss: nn.Module
    batch: Callable[[], tuple[Tensor, Tensor]]
    optimizer: torch.optim.Optimizer


def _env(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu2 = nn.ReLU()
        self.down = None
        if stride != 1 or channels_in != channels_out:
            shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.down = nn.Sequential(shortcut, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.down is None else self.down(x)
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + shortcut)


class ResNet18(nn.Module):
    """The topology of ResNet-18 (2-2-2-2 basic blocks) with a stem for 32 x 32 pictures."""

    def __init__(self, width: int = 32, classes: int = 43) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        blocks, channels = [], width
        for stage, out in enumerate([width, 2 * width, 4 * width, 8 * width]):
            for block in range(2):
                blocks.append(BasicBlock(channels, out, 2 if (stage > 0 and block == 0) else 1))
                channels = out
        self.layers = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(self.pool(self.layers(x)).flatten(1))


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, width: int = 1024, depth: int = 3, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        sizes = [inputs] + [width] * depth
        layers: list[nn.Module] = []
        for size_in, size_out in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        layers.append(nn.Linear(sizes[-1], classes))
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    """A transformer block with causal attention, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (z.reshape(shape).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        attention = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        attention = attention.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.proj((attention @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    """A small decoder that predicts the next token."""

    def __init__(
        self, width: int = 192, layers: int = 4, heads: int = 4, length: int = 64, vocabulary: int = 512
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.pos = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.vocabulary = vocabulary

    def forward(self, x: Tensor) -> Tensor:
        x = self.emb(x) + self.pos
        return self.head(self.ln(self.blocks(x))).flatten(0, 1)


def make(name: str, seed: int = 0) -> Workload:
    """Build a workload; the same seed gives the same weights and batches.

    Parameters
    ----------
    name
        One of `NAMES`.
    seed
        Seed of the weights; batches use `seed` + 1.
    """
    torch.manual_seed(seed)
    # Subnormal gradients make CPU steps several times slower and would drown the overhead being measured.
    torch.set_flush_denormal(True)
    generator = torch.Generator().manual_seed(seed + 1)
    builders = {"mlp": _mlp, "resnet18": _resnet18, "gpt": _gpt}
    if name not in builders:
        raise ValueError(f"workload {name!r} found, one of {', '.join(NAMES)} expected")
    model, batch = builders[name](generator)
    return Workload(model, nn.CrossEntropyLoss(), batch, torch.optim.Adam(model.parameters(), lr=1e-3))


def step(workload: Workload, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Run one forward pass, backward pass and update; return the loss."""
    inputs, labels = batch
    workload.optimizer.zero_grad()
    value = workload.loss(workload.model(inputs), labels)
    value.backward()
    workload.optimizer.step()
    return value


def _noisy(labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    random = torch.randint(0, classes, labels.shape, generator=generator)
    return torch.where(torch.rand(labels.shape, generator=generator) < WRONG_LABELS, random, labels)


def _resnet18(generator: torch.Generator) -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    count, classes = _env("BATCH", 8), 43
    model = ResNet18(_env("WIDTH", 32), classes)
    # A learnable task: a pattern of colours for each class, plus noise.
    patterns = torch.randn(classes, 3, 32, 32, generator=generator)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (count,), generator=generator)
        inputs = patterns[labels] + 0.5 * torch.randn(count, 3, 32, 32, generator=generator)
        return inputs, _noisy(labels, classes, generator)

    return model, batch


def _mlp(generator: torch.Generator) -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    count, classes = _env("BATCH", 64), 10
    model = MLP(_env("WIDTH", 1024), classes=classes)
    patterns = torch.randn(classes, 784, generator=generator)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (count,), generator=generator)
        inputs = (patterns[labels] + torch.randn(count, 784, generator=generator)).relu()
        return inputs, _noisy(labels, classes, generator)

    return model, batch


def _gpt(generator: torch.Generator) -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    count = _env("BATCH", 8)
    model = GPT(_env("WIDTH", 192))
    length, vocabulary = model.pos.shape[0], model.vocabulary

    def batch() -> tuple[Tensor, Tensor]:
        # Counting with noise, which can be learned.
        start = torch.randint(0, vocabulary, (count, 1), generator=generator)
        tokens = (start + torch.arange(length + 1)) % vocabulary
        return tokens[:, :-1].contiguous(), _noisy(tokens[:, 1:].reshape(-1), vocabulary, generator)

    return model, batch
