"""smdebug's hook for MXNet, on Luff: names, steps, values; trainings do not change."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import luff.compat.smdebug.mxnet as smd
import mxnet as mx
import mxnet_programs as programs
import numpy as np
import pytest
from luff.compat import smdebug
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

EVERY = ["weights", "biases", "gradients", "losses"]


@pytest.fixture(autouse=True)
def no_hook():
    from luff.compat.smdebug.core.error_handling_agent import error_handling_agent

    yield
    hook = smd.get_hook(create_if_not_exists=False)
    if hook is not None:
        hook.close()
    smd.del_hook()
    error_handling_agent.disable_smdebug = False


@pytest.fixture
def net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu", in_units=6), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Xavier())
    return net


def every(tmp_path, **options):
    options.setdefault("save_config", smd.SaveConfig(save_interval=1))
    return smd.Hook(out_dir=str(tmp_path / "t"), **options)


def finished(hook, tmp_path):
    hook.close()
    return smd.create_trial(str(tmp_path / "t"))


def train(net, data, hook=None, steps=3, see=lambda **_: None, evaluate=False):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss(prefix="softmaxcrossentropyloss0_")
    if hook is not None:
        hook.register_block(net)
        hook.register_block(loss_of)
    for step in range(steps):
        x, y = nd.array(data[0][8 * step : 8 * step + 8]), nd.array(data[1][8 * step : 8 * step + 8])
        if hook is not None:
            hook.set_mode(smd.modes.TRAIN)
        with autograd.record():
            output = net(x)
            loss = loss_of(output, y)
        loss.backward()
        trainer.step(8)
        see(step=step, x=x, output=output, loss=loss)
        if evaluate:
            hook.set_mode(smd.modes.EVAL)
            loss_of(net(x), y)


@pytest.mark.parametrize("hybrid", [False, True], ids=["plain", "hybridised"])
def test_names_values_and_steps(net, data, tmp_path, hybrid):
    hook = every(tmp_path, include_collections=EVERY)
    seen = {}

    def see(step, loss, **_):
        parameters = net.collect_params().items()
        seen[step] = {name: p.data().asnumpy() for name, p in parameters}
        seen[step] |= {f"gradient/{name}": p.grad().asnumpy() for name, p in parameters}
        seen[step]["softmaxcrossentropyloss0_output_0"] = loss.asnumpy()

    if hybrid:
        net.hybridize()
    train(net, data, hook, see=see)
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0, 1, 2]
    assert sorted(trial.tensor_names()) == sorted(seen[0])
    for step, values in seen.items():  # weights after the update
        for name, value in values.items():
            np.testing.assert_array_equal(trial.tensor(name).value(step), value, err_msg=name)
    assert trial.tensor_names(collection="gradients") == sorted(n for n in seen[0] if n[:8] == "gradient")
    assert trial.tensor_names(collection="weights") == ["net_dense0_weight", "net_dense1_weight"]


def test_losses_every_500th_step_without_configuration(net, data, tmp_path):
    hook = smd.Hook(out_dir=str(tmp_path / "t"))
    train(net, data, hook)
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0]
    assert trial.tensor_names() == ["softmaxcrossentropyloss0_output_0"]


def test_layers_are_saved_where_a_collection_asks_for_them(net, data, tmp_path):
    hook = every(tmp_path, include_collections=["relu", "first"])
    hook.get_collection("relu").include(".*relu_output")
    hook.get_collection("first").add_block_tensors(net[0], inputs=True, outputs=True)
    expected = {}
    train(net, data, hook, see=lambda step, x, **_: expected.update({step: x.asnumpy()}))
    trial = finished(hook, tmp_path)
    assert trial.tensor_names(collection="relu") == ["net_dense0_relu_output_0"]
    assert trial.tensor_names(collection="first") == ["net_dense0_input_0", "net_dense0_output_0"]
    np.testing.assert_array_equal(trial.tensor("net_dense0_input_0").value(2), expected[2])


def test_modes_and_what_belongs_to_training_only(net, data, tmp_path):
    hook = every(tmp_path, include_collections=EVERY)
    train(net, data, hook, evaluate=True)
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    assert trial.steps(mode=smd.modes.EVAL) == [0, 1, 2]
    assert trial.tensor("gradient/net_dense0_weight").steps(mode=smd.modes.TRAIN) == [0, 1, 2]
    assert trial.tensor("gradient/net_dense0_weight").steps(mode=smd.modes.EVAL) == []
    assert trial.tensor("softmaxcrossentropyloss0_output_0").steps(mode=smd.modes.EVAL) == [0, 1, 2]


def test_scalars_tensors_and_reductions(net, data, tmp_path):
    reductions = smd.ReductionConfig(reductions=["mean"], norms=["l2"])
    hook = every(tmp_path, include_collections=["weights"], reduction_config=reductions)

    def see(step, **_):
        hook.save_scalar("rate", step / 2)
        hook.save_tensor("mine", np.full(3, step), collections_to_write="weights")

    train(net, data, hook, see=see)
    weight = net[0].weight.data().asnumpy()
    trial = finished(hook, tmp_path)
    found = trial.tensor("net_dense0_weight")
    assert found.reduction_value(2, "mean") == pytest.approx(weight.mean(), rel=1e-5)
    assert found.reduction_value(2, "l2") == pytest.approx(np.linalg.norm(weight), rel=1e-5)
    assert [trial.tensor("scalar/rate").value(step)[0] for step in (0, 1, 2)] == [0, 0.5, 1]
    assert trial.tensor("mine").steps() == [0, 1, 2]


def test_what_is_no_block_is_told_and_left(net, tmp_path, caplog):
    hook = every(tmp_path)
    hook.logger.propagate = True
    hook.register_block("net")
    hook.register_block(net)
    hook.register_hook(net)
    hook.logger.propagate = False
    assert "expected a mxnet.gluon.Block" in caplog.text
    assert "registered already" in caplog.text
    assert smd.get_hook() is hook


def test_a_hook_by_a_json_file(net, data, tmp_path, monkeypatch):
    path = tmp_path / "hook.json"
    listed = [{"CollectionName": "gradients"}, {"CollectionName": "weights"}]
    text = {"LocalPath": str(tmp_path / "t"), "HookParameters": {"save_interval": "2"}}
    path.write_text(json.dumps({**text, "CollectionConfigurations": listed}))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(path))
    hook = smd.get_hook()
    train(net, data, hook)
    trial = finished(hook, tmp_path)
    assert trial.tensor("gradient/net_dense1_bias").steps() == [0, 2]


@pytest.mark.parametrize("way", [programs.plain, programs.hybridised], ids=lambda way: way.__name__)
def test_trainings_are_bit_by_bit_the_same(way, data, tmp_path):
    bare = way(data, lambda *_: None)
    mx.random.seed(0)
    watched = way(data, lambda net, _: every(tmp_path, save_all=True).register_block(net))
    for one, other in zip(bare, watched, strict=True):
        assert [a.tobytes() for a in one] == [a.tobytes() for a in other]


def test_an_error_of_the_training_reaches_the_training(tmp_path, data):
    net = nn.Dense(3, in_units=6, prefix="half_")
    net.initialize()
    net.cast("float16")
    hook = smd.Hook(out_dir=str(tmp_path / "t"), save_config=smd.SaveConfig(save_interval=1))
    loss_of = gluon.loss.L2Loss()
    hook.register_block(net)
    hook.register_block(loss_of)
    with pytest.raises(mx.MXNetError, match="float16"):
        loss_of(net(nd.array(data[0], dtype="float16")), nd.zeros((96, 3), dtype="float16"))


def test_under_smdebug_s_own_name():
    smdebug.install()
    try:
        import smdebug.mxnet as named

        assert named.Hook is smd.Hook
        assert importlib.import_module("smdebug.mxnet.hook").Hook is smd.Hook
    finally:
        smdebug.uninstall()


def test_an_unchanged_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import mxnet as mx, smdebug.mxnet as smd\n"
        "from mxnet import autograd, gluon, nd\n"
        "net = gluon.nn.Dense(2, prefix='net_'); net.initialize()\n"
        "hook = smd.Hook(out_dir='out', save_all=True, save_config=smd.SaveConfig(save_interval=1))\n"
        "hook.register_block(net)\n"
        "trainer = gluon.Trainer(net.collect_params(), 'sgd')\n"
        "for step in range(3):\n"
        "    with autograd.record():\n"
        "        loss = net(nd.ones((4, 3))).sum()\n"
        "    loss.backward()\n"
        "    trainer.step(4)\n"
    )
    subprocess.run(
        [sys.executable, "-m", "luff.compat.smdebug", "train.py"], cwd=tmp_path, env=os.environ, check=True
    )
    trial = smd.create_trial(str(tmp_path / "out"))
    assert trial.steps() == [0, 1, 2]
    names = {"gradient/net_bias", "gradient/net_weight", "net_bias", "net_input_0", "net_output_0"}
    assert set(trial.tensor_names()) == names | {"net_weight"}
