"""Faults that the default rules report under `luff run`, and a healthy training for which they report nothing."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
mx.random.seed(1)
random = np.random.RandomState(1)
x = random.randn(640, 8).astype("float32")
y = ((x[:, 0] * x[:, 1] > 0) + (x[:, 2] > 0)).astype("float32")
net = nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(nn.Dense(32, activation="relu"), nn.BatchNorm(), nn.Dropout(0.1), nn.Dense(3))
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
parameters, train_mode, rate, clears, batch = net.collect_params(), True, 0.01, False, 32
{change}
trainer = gluon.Trainer(parameters, "adam", {{"learning_rate": rate}})
for epoch in range(12):
    order = random.permutation(512)
    for start in range(0, 512, batch):
        rows = order[start : start + batch]
        with autograd.record(train_mode=train_mode):
            loss = loss_of(net(nd.array(x[rows])), nd.array(y[rows]))
        loss.backward(train_mode=train_mode)
        trainer.step(batch, ignore_stale_grad=True)
        if clears:
            net.collect_params().zero_grad()
    loss_of(net(nd.array(x[512:])), nd.array(y[512:])).wait_to_read()
"""


def findings(luff_run, tmp_path, change):
    """Returns the leading findings: (rule, its sentence)."""
    out = tmp_path / "findings.jsonl"
    luff_run(PROGRAM.format(change=change), "--findings", str(out))
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return [(one["rule"], one["what"]) for one in found if not one["leader"]]


def test_a_healthy_training_is_passed_in_silence(luff_run, tmp_path):
    assert findings(luff_run, tmp_path, "net.hybridize()") == []


@pytest.mark.thorough
def test_a_healthy_training_that_accumulates_is_passed_in_silence(luff_run, tmp_path):
    change = "net.collect_params('.*(weight|bias|gamma|beta)').setattr('grad_req', 'add'); clears = True"
    assert findings(luff_run, tmp_path, change) == []


def test_gradients_that_are_never_cleared(luff_run, tmp_path):
    change = "net.collect_params('.*(weight|bias|gamma|beta)').setattr('grad_req', 'add')"
    assert findings(luff_run, tmp_path, change)[0][0] == "GradientNotCleared"


def test_a_layer_that_no_trainer_holds(luff_run, tmp_path):
    found = findings(luff_run, tmp_path, "parameters = net.collect_params('net_dense1_.*')")
    assert found[0] == ("ParamNotOptimized", "4 parameters belong to no optimizer, and get gradients")


@pytest.mark.thorough
def test_a_training_in_the_mode_of_evaluation(luff_run, tmp_path):
    assert findings(luff_run, tmp_path, "train_mode = False")[0][0] == "ModeMismatch"


def test_a_row_that_is_not_a_number(luff_run, tmp_path):
    found = findings(luff_run, tmp_path, "x[100, 3] = np.nan")
    assert found[0][0] == "NonFinite"
    assert "NaN" in found[0][1]
