"""Classifies digits with Gluon. `luff run -- python train.py` watches it; with --by-hand it attaches Luff itself.

luff run -- python examples/mxnet/train.py
luff run -- python examples/mxnet/train.py --fault uncleared   # GradientNotCleared
python examples/mxnet/train.py --by-hand runs/digits
"""

from __future__ import annotations

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


def digits(rows: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy drawings of seven-segment digits, 10 x 6 points, and their numbers."""
    segments = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgcde", "abc", "abcdefg", "abcdfg"]
    places = {
        "a": (0, slice(1, 5)), "g": (4, slice(1, 5)), "d": (9, slice(1, 5)),
        "f": (slice(1, 4), 0), "b": (slice(1, 4), 5), "e": (slice(5, 9), 0), "c": (slice(5, 9), 5),
    }  # fmt: skip
    shapes = np.zeros((10, 10, 6), dtype="float32")
    for number, names in enumerate(segments):
        for name in names:
            shapes[(number, *places[name])] = 1
    y = random.randint(0, 10, rows)
    return shapes[y] + 0.6 * random.randn(rows, 10, 6).astype("float32"), y.astype("float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--by-hand", metavar="RUN")
    parser.add_argument("--fault", choices=["none", "uncleared"], default="none")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    mx.random.seed(0)
    random = np.random.RandomState(0)
    x, y = digits(4096, random)
    x_val, y_val = (nd.array(a) for a in digits(512, random))

    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dropout(0.2), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    if args.fault == "uncleared":
        net.collect_params().setattr("grad_req", "add")  # and zero_grad() is never called
    net.hybridize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})

    if args.by_hand:
        import luff.mxnet

        luff.mxnet.attach(net, trainer=trainer, run=args.by_hand)

    for epoch in range(args.epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x), 64):
            rows = order[start : start + 64]
            with autograd.record():
                loss = loss_of(net(nd.array(x[rows])), nd.array(y[rows]))
            loss.backward()
            trainer.step(64)
        output = net(x_val)
        validation = loss_of(output, y_val).mean().asscalar()
        right = (output.argmax(axis=1) == y_val).mean().asscalar()
        print(f"epoch {epoch}: validation loss {validation:.3f}, right {right:.1%}")


if __name__ == "__main__":
    main()
