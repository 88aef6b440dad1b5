"""The cost of watching Gluon with default settings: with and without `luff.mxnet.attach`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _pairs import compare

LIMIT = 1.10
#: Name, function that makes the model, shape of a row, rows of a batch, steps.
JOBS = (
    ("hybridised convolutions", "convolutions", (3, 16, 16), 32, 80),
    ("dense layers, Adam", "dense", (512,), 512, 50),
)


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns rows of the table, and their gates."""
    found = [_compared(*job) for job in JOBS]
    return [row for row, _ in found], [held for _, held in found]


def _compared(
    name: str, kind: str, shape: tuple[int, ...], batch: int, steps: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    import luff.mxnet
    import mxnet as mx
    from mxnet import autograd, gluon, nd

    random = np.random.RandomState(0)
    rows = [nd.array(random.rand(batch, *shape)) for _ in range(8)]
    labels = [nd.array(random.randint(0, 10, batch)) for _ in range(8)]
    mx.nd.waitall()

    def train(attach: Callable[[Any, Any], Any] = lambda *_: None) -> None:
        net = _model(kind)
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        attach(net, trainer)
        for step in range(steps):
            with autograd.record():
                loss = loss_of(net(rows[step % 8]), labels[step % 8])
            loss.backward()
            trainer.step(batch)
        mx.nd.waitall()

    def watched(run: Path) -> None:
        hooks: list[Any] = []
        train(lambda net, trainer: hooks.append(luff.mxnet.attach(net, trainer, run=run)))
        hooks[0].close()
        if hooks[0].guard.count:
            raise RuntimeError(f"Luff's hook failed: {hooks[0].guard.first}")

    return compare(f"MXNet, {name}", train, watched, LIMIT, pairs=6)


def _model(kind: str) -> Any:
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    if kind == "convolutions":
        for channels in (16, 32, 32):
            net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    else:
        for _ in range(3):
            net.add(nn.Dense(1024, activation="relu"))
        net.add(nn.Dense(10))
    net.initialize()
    net.hybridize()
    return net
