"""`luff run` on scripts that never mention Luff."""

from __future__ import annotations

import luff
import pytest

TRAINING = """
import warnings
warnings.simplefilter("ignore")
import mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
from mxnet.autograd import backward
from mxnet.gluon import nn
mx.random.seed(0)
random = np.random.RandomState(0)
x, y = random.randn(64, 6).astype("float32"), random.randint(0, 3, 64)
net = nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(nn.Dense(8, activation="relu"), nn.Dense(3))
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})

def train(steps):
    for step in range(steps):
        with autograd.record():
            loss = loss_of(net(nd.array(x[:48])), nd.array(y[:48]))
        loss.backward()
        trainer.step(48)
"""


def test_a_training_and_its_evaluation(luff_run):
    done, trial = luff_run(
        TRAINING + "net(nd.array(x)); net.hybridize()\n"  # determines the shapes before anything is trained
        "train(5); loss_of(net(nd.array(x[48:])), nd.array(y[48:])); train(2)\n"
    )
    assert "no findings" in done.stderr
    assert trial.outcome == "completed"
    assert trial.steps("TRAIN") == list(range(7))
    assert trial.steps("EVAL") == [0]
    assert len(trial.scalars("loss_output_0", "TRAIN")["value"]) == 7
    assert {"net_dense0_weight", "gradient/net_dense1_bias"} <= set(trial.tensors())
    assert trial.document("environment")["mxnet"] == "1.9.1"


def test_transforms_and_evaluations_alone_open_no_run(luff_run, tmp_path):
    _, trial = luff_run(
        TRAINING + "import os\n"
        "from mxnet.gluon.data.vision import transforms\n"
        "transforms.ToTensor()(nd.zeros((4, 4, 3), dtype='uint8')); net(nd.array(x))\n"
        "run = os.path.join(os.environ['HOME'], 'run')\n"
        "assert not [name for name in os.listdir(run) if name.startswith('w')] if os.path.exists(run) else True\n"
        "train(1)\n"
    )
    assert trial.steps() == [0]


@pytest.mark.thorough
def test_backward_by_its_function(luff_run):
    _, trial = luff_run(
        TRAINING + "for _ in range(3):\n"
        "    with autograd.record():\n"
        "        loss = (net(nd.array(x)) ** 2).mean()\n"
        "    backward(loss)\n"
        "    trainer.step(1)\n"
    )
    assert trial.scalars("loss_output_0", "TRAIN")["mode_step"].tolist() == [0, 1, 2]


def test_two_lines_in_a_watched_script_take_its_run(luff_run):
    _, trial = luff_run(
        TRAINING + "import luff.mxnet\n"
        "hook = luff.mxnet.attach(net, trainer=trainer, collections=['outputs'], save_interval=2)\n"
        "train(3)\n"
    )
    assert len(trial.workers()) == 1
    assert trial.tensor("net_dense0_relu_output_0").value_steps("TRAIN") == [0, 2]


def test_a_forked_child_has_a_run_of_its_own(luff_run):
    _, trial = luff_run(
        TRAINING + "import multiprocessing\n"
        "train(2)\n"
        "child = multiprocessing.get_context('fork').Process(target=train, args=(1,))\n"
        "child.start(); child.join()\n"
        "assert child.exitcode == 0\n"
        "train(1)\n"
    )
    with luff.open_trial(f"{trial.path}-2") as other:
        assert [len(one.tensor("loss_output_0").steps("TRAIN")) for one in (trial, other)] == [3, 1]


def test_a_loop_without_blocks(luff_run):
    _, trial = luff_run(
        TRAINING + "weight = nd.random.normal(shape=(6, 1)); weight.attach_grad()\n"
        "for _ in range(4):\n"
        "    with autograd.record():\n"
        "        loss = (nd.dot(nd.array(x), weight) - nd.array(y).expand_dims(1)).square()\n"
        "    loss.backward()\n"
        "    weight -= 0.001 * weight.grad\n"
    )
    assert trial.scalars("loss_output_0", "TRAIN")["mode_step"].tolist() == [0, 1, 2, 3]


@pytest.mark.thorough
def test_loaders_that_fork_train_nothing(luff_run):
    _, trial = luff_run(
        TRAINING + "from mxnet.gluon.data import ArrayDataset, DataLoader\n"
        "loader = DataLoader(ArrayDataset(x, y.astype('float32')), batch_size=16, num_workers=2)\n"
        "for a, b in loader:\n"
        "    with autograd.record():\n"
        "        loss = loss_of(net(a), b)\n"
        "    loss.backward()\n"
        "    trainer.step(16)\n"
    )
    assert len(trial.workers()) == 1
    assert trial.steps("TRAIN") == [0, 1, 2, 3]


@pytest.mark.thorough
def test_torch_beside_it_is_not_needed(luff_run):
    _, trial = luff_run(
        "import luff\n" + TRAINING + "train(2)\nassert 'torch' not in __import__('sys').modules\n"
    )
    assert trial.steps("TRAIN") == [0, 1]


def test_an_error_inside_luff_never_reaches_the_training(luff_run):
    done, trial = luff_run(
        TRAINING + "from luff.mxnet import _evidence, _optimizer, get_hook\n"
        "train(1)\n"
        "def broken(*arguments): raise RuntimeError('broken')\n"
        "_evidence.Evidence.reach = _optimizer.Optimizer.settings = broken\n"
        "train(3)\n"
        "print('through', get_hook().health()['hook_errors'])\n"
    )
    assert "through 6" in done.stdout
    assert trial.steps("TRAIN") == list(range(4))
    assert any(gap["reason"] == "hook error" for gap in trial.gaps())


def test_a_finding_stops_the_training_after_an_update(luff_run):
    done, trial = luff_run(
        TRAINING + "import luff\n"
        "luff.on_stop(lambda: net.save_parameters('stopped.params'))\n"
        "try:\n"
        "    trainer.set_learning_rate(float('nan')); train(100000)\n"
        "finally:\n"
        "    print('left in peace', trainer.optimizer.num_update < 100000)\n",
        "--on-finding",
        "stop",
        expect=76,
    )
    assert "left in peace True" in done.stdout
    assert trial.outcome == "stopped"


@pytest.mark.thorough
def test_the_estimator_of_gluon(luff_run):
    _, trial = luff_run(
        TRAINING + "from mxnet.gluon.contrib.estimator import Estimator\n"
        "from mxnet.gluon.data import ArrayDataset, DataLoader\n"
        "rows = DataLoader(ArrayDataset(x[:48], y[:48].astype('float32')), batch_size=16)\n"
        "others = DataLoader(ArrayDataset(x[48:], y[48:].astype('float32')), batch_size=16)\n"
        "estimator = Estimator(net, loss_of, trainer=trainer)\n"
        "estimator.fit(rows, val_data=others, epochs=2)\n"
    )
    assert trial.steps("TRAIN") == list(range(6))
    assert trial.steps("EVAL") == [0, 1]
