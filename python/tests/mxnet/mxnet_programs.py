"""Small trainings in the usual ways of Gluon. Each returns the losses, and all parameters at the end."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn

STEPS = 4


def a_net(hybrid=False, **options):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Dense(16, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3), nn.Dense(8, activation="tanh")
        )
        net.add(nn.Dense(3))
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize(**options)
    return net


def batches(data, steps=STEPS, size=16):
    x, y = data
    for step in range(steps):
        rows = slice(step * size % len(x), step * size % len(x) + size)
        yield nd.array(x[rows]), nd.array(y[rows])


def result(net, losses):
    values = [p.data().asnumpy() for _, p in sorted(net.collect_params().items())]
    return [loss.asnumpy() for loss in losses], values


def plain(data, attach, hybrid=False, optimizer="adam", settings=None, **options):
    net = a_net(hybrid, **options)
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings or {"learning_rate": 0.05})
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for x, y in batches(data):
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(x))
        losses.append(loss)
    return result(net, losses)


def hybridised(data, attach):
    return plain(data, attach, hybrid=True)


def static(data, attach):
    return plain(data, attach, hybrid=True, static_alloc=True, static_shape=True)


def momentum(data, attach):
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)
    settings = {"momentum": 0.9, "wd": 1e-3, "lr_scheduler": schedule}
    return plain(data, attach, optimizer="sgd", settings=settings)


def convolution(data, attach):
    net = nn.HybridSequential(prefix="conv_")
    with net.name_scope():
        net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
        net.add(nn.Conv2D(32, 3), nn.GlobalAvgPool2D(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    random = np.random.RandomState(1)
    for _, y in batches(data):
        with autograd.record():
            loss = loss_of(net(nd.array(random.rand(16, 3, 12, 12))), y)
        loss.backward()
        trainer.step(16)
        losses.append(loss)
        net(nd.array(random.rand(16, 3, 12, 12))).wait_to_read()
    return result(net, losses)


def recurrent(data, attach):
    class Net(gluon.Block):
        def __init__(self):
            super().__init__(prefix="rec_")
            with self.name_scope():
                self.embedding = nn.Embedding(7, 5)
                self.lstm = rnn.LSTM(6, layout="NTC", dropout=0.2, num_layers=2)
                self.dense = nn.Dense(7, flatten=False)

        def forward(self, x):
            return self.dense(self.lstm(self.embedding(x)))

    net = Net()
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam")
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    random = np.random.RandomState(2)
    for _ in range(STEPS):
        x = nd.array(random.randint(0, 7, (8, 9)))
        with autograd.record():
            loss = loss_of(net(x[:, :-1]), x[:, 1:])
        loss.backward()
        trainer.step(8)
        losses.append(loss)
    return result(net, losses)


def accumulated(data, attach):
    net = a_net()
    net.collect_params().setattr("grad_req", "add")
    trainer = gluon.Trainer(net.collect_params(".*(weight|bias)"), "sgd", {"learning_rate": 0.1})
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for index, (x, y) in enumerate(batches(data)):
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        losses.append(loss)
        if index % 2:
            trainer.step(32)
            net.collect_params().zero_grad()
    return result(net, losses)


def by_hand(data, attach):
    net = nn.Sequential(prefix="hand_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6, activation="sigmoid"), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    attach(net)
    losses = []
    for x, y in batches(data):
        with autograd.record():
            loss = -nd.pick(nd.log_softmax(net(x)), y).mean()
        autograd.backward(loss)
        for parameter in net.collect_params().values():
            parameter.data()[:] -= 0.5 * parameter.grad()
        losses.append(loss)
    return result(net, losses)


def double(data, attach):
    net = a_net()
    net.cast("float64")
    trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.01, "momentum": 0.9})
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for x, y in batches(data):
        with autograd.record():
            loss = loss_of(net(x.astype("float64")), y)
        loss.backward()
        trainer.allreduce_grads()
        trainer.update(len(x))
        losses.append(loss)
    return result(net, losses)


def two_contexts(data, attach):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.HybridSequential(prefix="two_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    attach(net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for x, y in batches(data):
        parts = zip(
            gluon.utils.split_and_load(x, contexts), gluon.utils.split_and_load(y, contexts), strict=True
        )
        with autograd.record():
            found = [loss_of(net(a), b) for a, b in parts]
        for loss in found:
            loss.backward()
        trainer.step(len(x))
        losses += found
    contexts_of = [p.data(contexts[0]).asnumpy() for _, p in sorted(net.collect_params().items())]
    return [loss.asnumpy() for loss in losses], contexts_of


WAYS = [
    plain,
    hybridised,
    static,
    momentum,
    convolution,
    recurrent,
    accumulated,
    by_hand,
    double,
    two_contexts,
]
