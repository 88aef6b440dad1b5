"""Where the time of a step goes."""

from __future__ import annotations

SCRIPT = """
import mxnet as mx
from mxnet import autograd, gluon, nd
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(1))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
loss_fn = gluon.loss.L2Loss()
for _ in range(20):
    x = nd.random.uniform(shape=(4, 8)); y = nd.ones((4, 1))
    with autograd.record():
        loss = loss_fn(net(x), y)
    loss.backward()
    trainer.step(4)
"""


def test_parts_of_a_step_are_told_apart(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    for phase in ("forward", "loss", "backward", "optimizer"):
        assert lines[phase]["steps"] >= shown["steps"] - 1, phase
