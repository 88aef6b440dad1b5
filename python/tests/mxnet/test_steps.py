"""Steps, updates and modes, in the usual ways of Gluon."""

from __future__ import annotations

import luff
import luff.mxnet
import mxnet as mx
import numpy as np
import pytest
from luff.errors import InvalidArgumentError
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


def dense(name, units=3, inputs=6):
    net = nn.Dense(units, in_units=inputs, prefix=f"{name}_")
    net.initialize()
    return net


def sgd(*nets):
    parameters = {}
    for net in nets:
        parameters.update(net.collect_params())
    return gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1})


def steps_of(path):
    """Returns (mode, mode step, updates before it) for all steps in order."""
    with luff.open_trial(path) as trial:
        found = [trial.step_info(step) for step in trial.steps()]
        return [(one["mode"], one["mode_step"], one["update"]) for one in found]


def learn(net, x, trainer=None):
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    if trainer is not None:
        trainer.step(1)


def test_evaluations_are_steps_of_their_own(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)
    loss_of = gluon.loss.L2Loss(prefix="square_")
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        for _ in range(2):
            learn(net, x, trainer)
            learn(net, x, trainer)
            loss_of(net(x), nd.zeros((96, 3)))
    assert steps_of(tmp_path / "run") == [
        ("TRAIN", 0, 0), ("TRAIN", 1, 1), ("EVAL", 0, 2), ("TRAIN", 2, 2), ("TRAIN", 3, 3), ("EVAL", 1, 4),
    ]  # fmt: skip
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.scalars("square_output_0", "EVAL")["mode_step"].tolist() == [0, 1]


def test_each_micro_batch_is_a_step_and_gradients_belong_to_the_update(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    net.collect_params().setattr("grad_req", "add")
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run", save_all=True, save_interval=1):
        for _ in range(2):
            learn(net, x)
            learn(net, x)
            gradient = net.weight.grad().asnumpy()
            trainer.step(1)
            net.collect_params().zero_grad()
    assert [update for _, _, update in steps_of(tmp_path / "run")] == [0, 0, 1, 1]
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.tensor("gradient/net_weight").steps("TRAIN") == [1, 3]
        np.testing.assert_array_equal(trial.tensor("gradient/net_weight").value(3, mode="TRAIN"), gradient)
        assert trial.tensor("net_weight").steps("TRAIN") == [0, 1, 2, 3]


def test_several_forward_passes_before_a_backward_pass_are_one_step(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run", save_all=True, save_interval=1):
        for _ in range(2):
            with autograd.record():
                loss = (net(x) - net(2 * x)).square().mean()
            loss.backward()
            trainer.step(1)
    assert steps_of(tmp_path / "run") == [("TRAIN", 0, 0), ("TRAIN", 1, 1)]
    with luff.open_trial(tmp_path / "run") as trial:
        assert {"net_output_0", "net_output_1"} <= set(trial.tensors())


def test_two_models_that_train_each_other(data, tmp_path):
    maker, judge = dense("maker", 6), dense("judge", 1)
    makers, judges = sgd(maker), sgd(judge)
    loss_of = gluon.loss.SigmoidBCELoss(prefix="bce_")
    x = nd.array(data[0])
    ones, zeros = nd.ones((96,)), nd.zeros((96,))
    with luff.mxnet.attach([maker, judge], [makers, judges], run=tmp_path / "run"):
        for _ in range(2):
            with autograd.record():
                loss = loss_of(judge(x), ones) + loss_of(judge(maker(x).detach()), zeros)
            loss.backward()
            judges.step(96)
            with autograd.record():
                loss = loss_of(judge(maker(x)), ones)
            loss.backward()
            makers.step(96)
    assert [step[:2] for step in steps_of(tmp_path / "run")] == [("TRAIN", n) for n in range(4)]
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.tensor("gradient/judge_weight").steps("TRAIN") == [0, 2]
        assert trial.tensor("gradient/maker_weight").steps("TRAIN") == [1, 3]
        assert [o["number"] for o in trial.document("model")["optimizers"]] == [0, 1]
        updates = [e for e in trial.events("TRAIN") if e["kind"] == "optimizer_step"]
        assert [e["subject"] for e in updates] == [1, 0, 1, 0]


def test_an_evaluation_between_backward_pass_and_update_does_not_part_them(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        for _ in range(3):
            learn(net, x)
            net(x).wait_to_read()
            trainer.step(1)
    assert steps_of(tmp_path / "run") == [("TRAIN", n, n) for n in range(3)]


def test_a_loop_without_a_trainer(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    before, gradients = [], []
    with luff.mxnet.attach(net, run=tmp_path / "run", save_all=True, save_interval=1):
        for _ in range(3):
            before.append(net.weight.data().asnumpy())
            learn(net, x)
            gradients.append(net.weight.grad().asnumpy())
            net.weight.data()[:] -= 0.01 * net.weight.grad()
    assert steps_of(tmp_path / "run") == [("TRAIN", n, 0) for n in range(3)]
    with luff.open_trial(tmp_path / "run") as trial:
        for step in range(3):
            found = trial.tensor("net_weight").value(step, mode="TRAIN")
            np.testing.assert_array_equal(found, before[step])
            found = trial.tensor("gradient/net_weight").value(step, mode="TRAIN")
            np.testing.assert_array_equal(found, gradients[step])


def test_an_update_that_a_loss_scaler_leaves_out_is_an_event(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)

    class Scaler:
        overflow = False

        def has_overflow(self, params):
            return self.overflow

    trainer._amp_loss_scaler = Scaler()
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        learn(net, x, trainer)
        Scaler.overflow = True
        learn(net, x, trainer)
        Scaler.overflow = False
        learn(net, x, trainer)
    assert [update for _, _, update in steps_of(tmp_path / "run")] == [0, 1, 1]
    with luff.open_trial(tmp_path / "run") as trial:
        assert [e["step"] for e in trial.events("TRAIN") if e["kind"] == "step_skipped"] == [1]


def test_modes_by_hand_and_values_of_the_user_s(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run") as hook:
        learn(net, x, trainer)
        hook.set_mode("PREDICT")
        luff.mxnet.save_scalar("mine", 2.5)
        net(x)
        hook.set_mode("GLOBAL")
        net(x)
        with pytest.raises(InvalidArgumentError, match="no mode is called"):
            hook.set_mode("VALIDATE")
    assert [step[0] for step in steps_of(tmp_path / "run")] == ["TRAIN", "PREDICT", "EVAL"]
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.scalars("scalar/mine", "PREDICT")["value"].tolist() == [2.5]


def test_flags_of_a_forward_pass_tell_its_mode(data, tmp_path):
    net = nn.HybridSequential(prefix="drop_")
    net.add(nn.Dropout(0.5), dense("inner"))
    x = nd.array(data[0])
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        learn(net, x, trainer)
        with autograd.record(train_mode=False):
            loss = net(x).sum()
        loss.backward(train_mode=False)
        trainer.step(1)
        net(x)
    with luff.open_trial(tmp_path / "run") as trial:
        bits = [e["argument"] for e in trial.events() if e["kind"] == "forward"]
    told = 1 << 12
    assert bits == [
        1 | 1 << 8 | 1 << 9 | 1 << 11 | told, 1 | 1 << 10 | 1 << 11 | told, 2 | 1 << 10 | told,
    ]  # fmt: skip


def test_a_resumed_run_goes_on(data, tmp_path):
    net, x = dense("net"), nd.array(data[0])
    trainer = sgd(net)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run"):
        learn(net, x, trainer)
        learn(net, x, trainer)
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run", resume=True):
        learn(net, x, trainer)
    assert steps_of(tmp_path / "run") == [("TRAIN", n, n) for n in range(3)]


def test_two_hooks_of_two_trainings(data, tmp_path):
    one, two, x = dense("one"), dense("two"), nd.array(data[0])
    first, second = sgd(one), sgd(two)
    with (
        luff.mxnet.attach(one, first, run=tmp_path / "one"),
        luff.mxnet.attach(two, second, run=tmp_path / "two"),
    ):
        learn(one, x, first)
        learn(two, x, second)
        learn(one, x, first)
    assert len(steps_of(tmp_path / "one")) == 2
    assert len(steps_of(tmp_path / "two")) == 1
    with luff.open_trial(tmp_path / "two") as trial:
        assert "two_weight" in trial.tensors() and "one_weight" not in trial.tensors()


def test_what_is_no_block_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"expected a mxnet\.gluon\.Block"):
        luff.mxnet.attach([3], run=tmp_path / "run")


def test_an_error_of_the_training_reaches_the_training(data, tmp_path):
    """MXNet reports an asynchronous error once, to whatever waits first: Luff raises it again."""
    net = nn.Dense(3, prefix="half_")
    net.initialize()
    net.cast("float16")  # the CPU does not support this layer: the error comes when its result is waited for
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with luff.mxnet.attach(net, trainer, run=tmp_path / "run") as hook:
        with pytest.raises(mx.MXNetError, match="float16"):
            learn(net, nd.array(data[0], dtype="float16"), trainer)
        assert hook.health()["hook_errors"] == 0
    mx.nd.waitall()


def test_a_newer_hook_takes_the_place_and_a_net_takes_its_hook_along(data, tmp_path):
    import gc
    import weakref

    def told(name):
        with luff.open_trial(str(tmp_path / name)) as trial:
            return len(trial.steps("TRAIN")), trial.outcome, "a newer hook" in trial.outcome_reason

    def train(net, trainer):
        for _ in range(3):
            with mx.autograd.record():
                loss = (net(mx.nd.array(data[0][:8])) ** 2).mean()
            loss.backward()
            trainer.step(8)

    net = mx.gluon.nn.Dense(3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for name in ("first", "second"):
        luff.mxnet.attach(net, trainer, run=tmp_path / name)
        train(net, trainer)
    reference = weakref.ref(luff.mxnet.get_hook())
    del net, trainer
    gc.collect()
    assert reference() is None
    assert [told("first"), told("second")] == [(3, "completed", True), (3, "completed", False)]
