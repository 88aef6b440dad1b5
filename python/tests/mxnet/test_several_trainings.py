"""Trainings of Gluon that follow each other in one process, under `luff run`: each has a run of its own."""

from __future__ import annotations

import luff

START = """
import hashlib
import warnings
warnings.simplefilter("ignore")
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
mx.random.seed(0)
x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype("float32"), y.astype("float32")
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
def net(outputs=10):
    made = gluon.nn.HybridSequential()
    made.add(gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(outputs))
    made.initialize(mx.init.Xavier())
    return made
def trainer_of(model, rate=0.005):
    return gluon.Trainer(model.collect_params(), "adam", {"learning_rate": rate})
def batch(step):
    first = step * 32 % 1280
    return mx.nd.array(x[first:first + 32]), mx.nd.array(y[first:first + 32])
def fit(model, trainer=None, steps=120):
    trainer = trainer or trainer_of(model)
    for step in range(steps):
        a, b = batch(step)
        with autograd.record():
            loss = loss_of(model(a), b)
        loss.backward()
        trainer.step(32)
def evaluate(model):
    for first in range(1280, 1700, 64):
        loss_of(model(mx.nd.array(x[first:first + 64])), mx.nd.array(y[first:first + 64]))
def show(model):
    for value in model.collect_params().values(): print(hashlib.sha256(value.data().asnumpy().tobytes()).hexdigest())
"""


def test_each_fold_has_a_run(luff_trainings, tmp_path):
    said, steps = luff_trainings(
        START
        + """
kept = []
for fold in range(3):
    model = net()
    fit(model)
    evaluate(model)
    show(model)
    kept.append(model)
""",
        same=True,
    )
    assert steps == [120, 120, 120]
    assert said.splitlines()[-1] == "luff: 3 trainings: 3 ok"
    seen = []
    for name in ("run", "run-2", "run-3"):
        with luff.open_trial(tmp_path / name) as trial:
            tensors = [trial.tensor(name) for name in trial.tensors()]
            loss = next(tensor.name for tensor in tensors if tensor.role == "loss")
            losses = trial.scalars(loss, "TRAIN")["value"]
            assert losses[0] > 1.8 > losses[-1]
            assert len(trial.steps("EVAL")) == 7
            seen.append(sorted(tensor.role for tensor in tensors))
    assert seen[0] == seen[1] == seen[2]
    assert {"weight", "gradient", "loss"} <= set(seen[0])


def test_what_belongs_together_shares_a_run(luff_trainings):
    _, steps = luff_trainings(
        START
        + """
fit(net(), steps=40)  # short
model = net()
fit(model)
fit(model, trainer_of(model, 0.0005), 80)  # another trainer of the same parameters
generator, critic = net(64), net(1)  # a training of its own: two models that take turns
one, other = trainer_of(generator), trainer_of(critic)
binary = gluon.loss.SigmoidBinaryCrossEntropyLoss()
for step in range(120):
    a, b = batch(step)
    with autograd.record():
        loss = binary(critic(a), mx.nd.ones(32)) + binary(critic(generator(a).detach()), mx.nd.zeros(32))
    loss.backward()
    other.step(32)
    with autograd.record():
        loss = binary(critic(generator(a)), mx.nd.ones(32))
    loss.backward()
    one.step(32)
frozen = net()
frozen.collect_params().setattr("grad_req", "null")  # of a perceptual loss: not trained
pupil = net()  # a training of its own
fit(pupil)
trainer = trainer_of(pupil)
for step in range(20):
    a, b = batch(step)
    with autograd.record():
        far = frozen(a)
        loss = loss_of(pupil(a), b) + 0.01 * ((pupil(a) - far) ** 2).mean(axis=1)
    loss.backward()
    trainer.step(32)
student = net()  # a training of its own, of a student whose teacher was trained before: all belong together
trainer = trainer_of(student)
for step in range(120):
    a, b = batch(step)
    told = model(a).softmax()
    with autograd.record():
        loss = ((student(a).softmax() - told) ** 2).sum()
    loss.backward()
    trainer.step(32)
"""
    )
    assert steps == [40 + 120 + 80, 240, 140, 120]
