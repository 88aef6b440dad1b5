"""Captured values are those of MXNet itself."""

from __future__ import annotations

import luff.mxnet
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


@pytest.fixture
def net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Dense(5, activation="relu", in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(3, in_units=5)
        )
    net.initialize(mx.init.Xavier())
    return net


def train(net, data, trainer, steps=3, see=lambda **_: None, loss_of=None):
    loss_of = loss_of or gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
    for step in range(steps):
        x, y = nd.array(data[0][step : step + 8]), nd.array(data[1][step : step + 8])
        weights = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
        with autograd.record():
            output = net(x)
            loss = loss_of(output, y)
        loss.backward()
        gradients = {
            name: p.grad().asnumpy() for name, p in net.collect_params().items() if p.grad_req != "null"
        }
        trainer.step(8)
        see(step=step, x=x, y=y, weights=weights, output=output, loss=loss, gradients=gradients)


@pytest.mark.parametrize("hybrid", [False, True], ids=["plain", "hybridised"])
def test_weights_gradients_losses_state_inputs_and_outputs(net, data, tmp_path, hybrid):
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    expected = {}
    hook = luff.mxnet.attach(net, trainer, run=tmp_path / "run", save_all=True, save_interval=1)

    def see(step, **values):
        states = {
            f"optimizer/Adam.{key}/{trainer._params[index].name}": state.asnumpy()
            for index, pair in trainer._updaters[0].states.items()
            for key, state in zip(("mean", "var"), pair, strict=True)
        }
        expected[step] = {**values, "states": states}

    train(net, data, trainer, see=see)
    hook.close()
    assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == [0, 1, 2]
        for step, values in expected.items():

            def recorded(name, step=step):
                return trial.tensor(name).value(step, mode="TRAIN")

            before = values["weights"]
            for name in before:
                if "running" not in name:  # the forward pass itself has changed these
                    np.testing.assert_array_equal(recorded(name), before[name], err_msg=name)
            for name, gradient in values["gradients"].items():
                np.testing.assert_array_equal(recorded(f"gradient/{name}"), gradient)
            for name, state in values["states"].items():
                np.testing.assert_array_equal(recorded(name), state)
            loss = values["loss"].asnumpy()
            np.testing.assert_array_equal(recorded("loss_output_0"), loss)
            np.testing.assert_array_equal(recorded("net_output_0"), values["output"].asnumpy())
            np.testing.assert_array_equal(recorded("net_input_0"), values["x"].asnumpy())
            np.testing.assert_array_equal(recorded("loss_input_0"), values["output"].asnumpy())
            np.testing.assert_array_equal(recorded("loss_input_1"), values["y"].asnumpy())
            scalars = trial.scalars("loss_output_0", "TRAIN")["value"]
            assert scalars[step] == pytest.approx(float(loss.mean()), rel=1e-6)
        roles = {name: trial.tensor(name).role for name in trial.tensors()}
        assert roles["net_dense0_weight"] == roles["net_batchnorm0_gamma"] == "weight"
        assert roles["net_dense0_bias"] == roles["net_batchnorm0_beta"] == "bias"
        assert roles["net_batchnorm0_running_mean"] == "buffer"
        assert roles["gradient/net_dense1_bias"] == "gradient"
        assert roles["loss_output_0"] == "loss"
        assert trial.tensor("net_dense0_weight").module == ("net_dense0", "Linear")
        rate = trial.scalars("optimizer/Adam.group0.lr", "TRAIN")["value"]
        assert rate.tolist() == [0.01] * 3
        layers = {"net_dense0_relu_output_0", "net_dense0_input_0"}
        if hybrid:  # a graph hides its layers, which must be a gap
            assert not layers & set(trial.tensors())
            assert "compiled graph" in {gap["reason"] for gap in trial.gaps()}
        else:
            assert layers <= set(trial.tensors())
            assert trial.tensor("net_dense0_relu_output_0").module == ("net_dense0_relu", "ReLU")
            assert trial.gaps() == []


def test_by_default_layers_and_state_are_not_read(net, data, tmp_path):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        train(net, data, trainer)
    with luff.open_trial(tmp_path / "run") as trial:
        names = set(trial.tensors())
        assert {"net_dense0_weight", "gradient/net_dense0_weight", "loss_output_0"} <= names
        assert not any("_input_" in name or "net_output" in name for name in names)
        assert not any(name.startswith("optimizer/SGD.momentum/") for name in names)
        assert trial.tensor("net_dense0_weight").summary(2, mode="TRAIN")["count"] == 30
        assert trial.tensor("net_dense0_weight").value_steps("TRAIN") == []


def test_the_document_names_layers_optimizers_and_losses(net, data, tmp_path):
    trainer = gluon.Trainer(net.collect_params("net_dense1.*"), "sgd", {"learning_rate": 0.5, "wd": 0.25})
    with luff.mxnet.attach(net, run=tmp_path / "run"):
        train(net, data, trainer)
    with luff.open_trial(tmp_path / "run") as trial:
        document = trial.document("model")
        (model,) = document["models"]
        types = [(module["path"], module["type"], module["mxnet_type"]) for module in model["modules"]]
        assert types == [
            ("", "Sequential", "HybridSequential"),
            ("0", "Linear", "Dense"),
            ("0.act", "ReLU", "Activation"),
            ("1", "BatchNorm", "BatchNorm"),
            ("2", "Linear", "Dense"),
        ]
        held = {p["name"]: p["optimizer"] for p in model["parameters"]}
        assert held["net_dense1_weight"] == "SGD" and held["net_dense0_weight"] is None
        assert {b["name"] for b in model["buffers"]} == {
            "net_batchnorm0_running_mean",
            "net_batchnorm0_running_var",
        }
        assert document["optimizers"][0]["type"] == "SGD"
        assert [loss["type"] for loss in document["losses"]] == ["CrossEntropyLoss"]
        assert trial.scalars("optimizer/SGD.group0.weight_decay", "TRAIN")["value"].tolist() == [0.25] * 3
        gradients = {name for name in trial.tensors() if name.startswith("gradient/")}
        assert gradients == {"gradient/net_dense1_weight", "gradient/net_dense1_bias"}


def test_a_gradient_that_no_backward_pass_has_written_is_none(data, tmp_path):
    used, unused = nn.Dense(3, in_units=6, prefix="used_"), nn.Dense(3, in_units=6, prefix="unused_")
    net = nn.Sequential(prefix="both_")
    net.add(used, unused)
    net.forward = used
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        for _ in range(2):
            with autograd.record():
                loss = net(nd.array(data[0])).sum()
            loss.backward()
            trainer.step(1, ignore_stale_grad=True)
    with luff.open_trial(tmp_path / "run") as trial:
        names = set(trial.tensors())
        assert "gradient/used_weight" in names and "gradient/unused_weight" not in names
        assert "unused_weight" in names
        assert trial.tensor("loss_output_0").role == "loss"


def test_a_sparse_gradient_is_recorded_as_a_dense_one(tmp_path):
    net = nn.Embedding(9, 4, sparse_grad=True, prefix="words_")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    expected = []
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run", save_all=True, save_interval=1) as hook:
        for _ in range(2):
            with autograd.record():
                loss = net(nd.array([1, 3, 3])).sum()
            loss.backward()
            expected.append(net.weight.grad().asnumpy())
            trainer.step(1)
        assert hook.health()["hook_errors"] == 0
    with luff.open_trial(tmp_path / "run") as trial:
        for step, gradient in enumerate(expected):
            found = trial.tensor("gradient/words_weight").value(step, mode="TRAIN")
            np.testing.assert_array_equal(found, gradient)


def test_schedules_of_mxnet_are_asked_and_those_of_others_are_not(net, data, tmp_path):
    asked = []

    def own(update):
        asked.append(update)
        return 0.1 / (1 + len(asked))

    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": own})
    with luff.mxnet.attach(net, trainer, run=tmp_path / "own"):
        train(net, data, trainer)
    calls = len(asked)
    asked.clear()
    train(net, data, gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": own}))
    assert len(asked) == calls
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.8)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    with luff.mxnet.attach(net, trainer, run=tmp_path / "factor"):
        train(net, data, trainer)
    with luff.open_trial(tmp_path / "own") as trial:
        assert not trial.has_tensor("optimizer/SGD.group0.lr")
    with luff.open_trial(tmp_path / "factor") as trial:
        assert trial.scalars("optimizer/SGD.group0.lr", "TRAIN")["value"].tolist() == [0.8, 0.4, 0.2]


def test_a_large_input_is_sampled_by_its_first_rows(tmp_path):
    net = nn.Dense(1, prefix="wide_")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-9})
    x = nd.random.normal(shape=(32, 2048))
    collections = [{"name": "samples", "roles": ["sample"], "save": {"save_interval": 1}}]
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run", collections=collections):
        with autograd.record():
            loss = gluon.loss.L2Loss(prefix="square_")(net(x), nd.zeros((32,)))
        loss.backward()
        trainer.step(32)
    with luff.open_trial(tmp_path / "run") as trial:
        sample = trial.tensor("sample/wide_input_0")
        np.testing.assert_array_equal(sample.value(0, mode="TRAIN"), x.asnumpy()[:8])
        assert sample.shard(0, mode="TRAIN")[0] == (32, 2048)
        assert trial.tensor("sample/square_input_0").value(0, mode="TRAIN").shape == (32, 1)
