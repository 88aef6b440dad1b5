"""Gradients with respect to outputs of modules and inputs of models: where a collection asks, right or a gap."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref

import cases
import luff
import luff.config
import luff.torch
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_session import FakeSession
from luff import _base_hook
from luff._codes import GapReason, Mode, Role
from luff.torch.capture._early import asks_for_gradients, asks_for_values
from torch import nn
from torch.utils.checkpoint import checkpoint

OUTPUTS = frozenset({Role.OUTPUT, Role.OUTPUT_GRADIENT})
INPUTS = frozenset({Role.INPUT, Role.INPUT_GRADIENT})
NONE, NOT_SEEN = int(GapReason.NO_GRADIENT), int(GapReason.NOT_SEEN)
TOO_MANY, COMPILED = int(GapReason.TOO_MANY), int(GapReason.COMPILED_GRAPH)


def array(tensor):
    return tensor.detach().clone().numpy()


def batch():
    return next(iter(cases.batches()))


class Net(nn.Module):
    """Modules followed by in-place operations, and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)
        self.twice = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.kept = {}

    def forward(self, x):
        x = self.keep("first", self.first(x))
        x = self.keep("relu", self.relu(x + 0))
        x = self.keep("twice_0", self.twice(x))
        x.mul_(0.5)
        x = self.keep("twice_1", self.twice(torch.sin(x)))
        x.tanh_()
        return self.last(x)

    def keep(self, name, tensor):
        tensor.register_hook(lambda gradient: self.kept.__setitem__(name, array(gradient)))
        return tensor


def train(model, x, y, optimizer=None, loss=F.cross_entropy):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    return value


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_of_outputs_are_those_of_the_same_step_and_call(watched, by_hand):
    torch.manual_seed(0)
    model = Net()
    _, session = watched(OUTPUTS, model if by_hand else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for x, y in cases.batches(3):
        train(model, x, y, optimizer)
        kept.append(dict(model.kept))
    assert len(session.train()) == 3
    for step, gradients in zip(session.train(), kept, strict=True):  # the first one opened the run
        assert np.array_equal(step.values["gradient/first_output_0"], gradients["first"])
        assert np.array_equal(step.values["gradient/relu_output_0"], gradients["relu"])
        assert np.array_equal(step.values["gradient/twice_output_0"], gradients["twice_0"])
        assert np.array_equal(step.values["gradient/twice_output_1"], gradients["twice_1"])
        assert step.values["first_output_0"].shape == step.values["gradient/first_output_0"].shape
        assert "gradient/Net_output_0" in step.values and step.gaps == []
        assert max(step.times.values()) == 1
    kinds = {name: (role, path, kind) for name, role, path, kind in session.tensors}
    assert kinds["gradient/twice_output_1"] == (Role.OUTPUT_GRADIENT, "twice", "Linear")
    assert not any("_input_" in name for name in kinds)


def test_gradients_times_activations_sum_up_as_a_derivative(watched):
    """d loss / d scale at 1 of a channel is the sum of gradient times activation: the score that pruning uses."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Identity(), nn.Linear(5, 3))
    _, session = watched(OUTPUTS, model)
    x, y = batch()
    scale = torch.ones(5, requires_grad=True)
    F.cross_entropy(model[2](model[0](x) * scale), y).backward()
    wanted = array(scale.grad)
    train(model, x, y)
    step = session.train()[-1]
    score = (step.values["gradient/0_output_0"] * step.values["0_output_0"]).sum(axis=0)
    assert np.allclose(score, wanted, atol=1e-6)


def test_gradients_of_inputs_where_the_input_requires_one(watched):
    model = cases.net(dropout=0.0)
    _, session = watched(INPUTS, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    x.requires_grad_()
    train(model, x, y, optimizer)
    assert np.array_equal(session.train()[0].values["gradient/Sequential_input_0"], array(x.grad))
    assert set(session.train()[0].values) >= {"Sequential_input_0", "0_input_0"}
    assert not any(name.startswith("gradient/0") for name in session.names)  # only those of the model
    made = torch.randn(8, 6, requires_grad=True)
    made_by = made * 2
    made_by.retain_grad()
    train(model, made_by, y, optimizer)
    assert np.array_equal(session.train()[1].values["gradient/Sequential_input_0"], array(made_by.grad))
    train(model, x.detach(), y, optimizer)
    assert session.train()[2].gaps == [("gradient/Sequential_input_0", NONE)]
    assert not x._backward_hooks and not made_by._backward_hooks  # nothing stays at tensors that live on


def test_what_has_no_gradient_is_a_gap(watched):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            with torch.no_grad():
                x = self.a(x)
            self.b(x)  # nobody uses it
            return self.c(x)

    model = Frozen()
    hook, session = watched({Role.OUTPUT_GRADIENT}, model)
    train(model, *batch())
    with torch.no_grad():
        model(batch()[0])
    hook.close()
    (step,), (evaluation,) = session.train(), session.eval()
    assert set(step.values) == {"gradient/c_output_0", "gradient/Frozen_output_0"}
    assert step.gaps == [("gradient/a_output_0", NONE), ("gradient/b_output_0", NONE)]
    assert not evaluation.values and not evaluation.gaps


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(watched, reentrant):
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.b(checkpoint(self.a, x, use_reentrant=reentrant))

    model = Recomputed()
    twin = copy.deepcopy(model)
    _, session = watched(OUTPUTS, model)
    x, y = batch()
    x.requires_grad_()
    train(model, x, y)
    hidden = twin.a(x)
    (wanted,) = torch.autograd.grad(F.cross_entropy(twin.b(hidden), y), hidden)
    (step,) = session.train()
    if reentrant:  # its modules run without gradients, and again inside the backward pass
        assert step.gaps == [("gradient/a_output_0", NONE)]
    else:
        assert np.array_equal(step.values["gradient/a_output_0"], array(wanted)) and not step.gaps


def test_double_backward_counts_the_whole_loss(watched):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    twin = copy.deepcopy(model)
    _, session = watched({Role.OUTPUT_GRADIENT, Role.INPUT_GRADIENT}, model)

    def penalised(model, x, keep):
        hidden = model[0](x) if keep else None
        out = model[2](model[1](hidden)) if keep else model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.mean() + slope.norm(), hidden

    x = torch.randn(4, 6, requires_grad=True)
    penalised(model, x, False)[0].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    loss, hidden = penalised(twin, x, True)
    (wanted,) = torch.autograd.grad(loss, hidden)
    (step,) = session.train()
    assert np.allclose(step.values["gradient/0_output_0"], array(wanted), atol=1e-7)
    assert np.allclose(step.values["gradient/Sequential_input_0"], array(x.grad), atol=1e-7)
    assert step.gaps == []


def test_of_several_backward_passes_in_a_step_the_first_is_kept(watched):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    _, session = watched({Role.OUTPUT_GRADIENT}, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    out.square().mean().backward()
    optimizer.step()
    (step,) = session.train()
    (wanted,) = torch.autograd.grad(F.cross_entropy(leaf := out.detach().requires_grad_(), y), leaf)
    assert np.array_equal(step.values["gradient/1_output_0"], array(wanted))
    assert sorted(step.gaps) == [(f"gradient/{name}_output_0", TOO_MANY) for name in ("0", "1", "Sequential")]


def test_accumulation_has_a_gradient_for_each_part(watched):
    model = nn.Sequential(nn.Linear(6, 3))
    _, session = watched({Role.OUTPUT_GRADIENT}, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in cases.batches(2):
        (F.cross_entropy(model(x), y) / 2).backward()
    optimizer.step()
    first, second = (step.values["gradient/0_output_0"] for step in session.train())
    assert not np.array_equal(first, second)


def test_a_scaled_loss_is_divided_out(watched):
    model = nn.Sequential(nn.Linear(6, 3))
    twin = copy.deepcopy(model)
    _, session = watched({Role.OUTPUT_GRADIENT}, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x, y = batch()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    (wanted,) = torch.autograd.grad(F.cross_entropy(out := twin(x), y), out)
    assert np.allclose(session.train()[0].values["gradient/0_output_0"], array(wanted), rtol=1e-6)


def test_a_sum_has_a_gradient_that_is_one_number_in_memory(watched):
    model = nn.Sequential(nn.Linear(6, 3))
    _, session = watched({Role.OUTPUT_GRADIENT}, model)
    train(model, batch()[0], None, loss=lambda out, _: out.sum())
    assert np.array_equal(session.train()[0].values["gradient/0_output_0"], np.ones((8, 3), np.float32))


def test_a_saliency_map_belongs_to_the_evaluation(watched):
    model = cases.net().eval()
    hook, session = watched(INPUTS, model)
    x, _ = batch()
    x.requires_grad_()
    hook.set_mode("EVAL")
    model(x).max(dim=1).values.sum().backward()
    hook.set_mode("TRAIN")
    hook.close()
    (step,) = session.steps
    assert step.mode == int(Mode.EVAL)
    assert np.array_equal(step.values["gradient/Sequential_input_0"], array(x.grad))


def test_autograd_grad_alone_is_a_gap(watched):
    model = cases.net().eval()
    hook, session = watched(INPUTS, model)
    x, _ = batch()
    hook.set_mode("EVAL")
    torch.autograd.grad(model(x.requires_grad_()).sum(), x)
    hook.close()
    (step,) = session.steps
    assert ("gradient/Sequential_input_0", NOT_SEEN) in step.gaps


def test_a_compiled_model_shows_its_own_output(watched):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager")
    _, session = watched({Role.OUTPUT_GRADIENT, Role.INPUT_GRADIENT}, compiled)
    x, y = batch()
    x.requires_grad_()
    train(compiled, x, y, torch.optim.SGD(model.parameters(), lr=0.1))
    given, out = x.grad, twin(x)
    (wanted,) = torch.autograd.grad(F.cross_entropy(out, y), out)
    (step,) = session.train()
    assert np.array_equal(step.values["gradient/Sequential_output_0"], array(wanted))
    assert np.array_equal(step.values["gradient/Sequential_input_0"], array(given))
    assert set(step.gaps) == {("", COMPILED)}


def test_nothing_is_hooked_if_nobody_asks(watched):
    model = cases.net()
    watched(frozenset(Role) - {Role.OUTPUT_GRADIENT, Role.INPUT_GRADIENT}, model)
    x, y = batch()
    out = model(x.requires_grad_())
    assert out._backward_hooks is None and x._backward_hooks is None
    F.cross_entropy(out, y).backward()
    for config in ({}, {"save_all": True}, {"collections": [{"name": "outputs"}, {"name": "gradients"}]}):
        assert not asks_for_gradients(config)
    asked = {"defaults": False, "collections": [{"name": "output_gradients"}]}
    assert asks_for_gradients(asked) and not asks_for_values(asked)
    assert asks_for_gradients({"collections": [{"name": "x", "tensor_names": ["gradient/0_output_0"]}]})


def test_hooks_print_nothing_hold_nothing_and_end_with_the_run(watched):
    model = cases.net()
    hook, session = watched(INPUTS | OUTPUTS, model)
    x, y = batch()
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model(x)
        torch.save(x, io.BytesIO())
        copy.deepcopy(x)
    loss = F.cross_entropy(out, y)
    hook.close()
    loss.backward()  # nobody listens any more
    assert not x._backward_hooks and hook.guard.count == 0
    assert not any(name in step.values for step in session.steps for name in session.names if "grad" in name)


def test_a_graph_that_lives_on_holds_no_model(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 3))
    session = FakeSession(OUTPUTS)
    monkeypatch.setattr(_base_hook, "open_session", lambda options, rank: session)
    luff.torch.attach(model, run="/nowhere")
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    loss.backward()


def test_a_raised_backward_pass_ends_the_watching(watched):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("the user's own")

    model = nn.Sequential(nn.Linear(6, 3))
    hook, session = watched({Role.OUTPUT_GRADIENT}, model)
    x, y = batch()
    with pytest.raises(ValueError, match="own"):
        F.cross_entropy(Failing.apply(model(x)), y).backward()
    train(model, x, y)
    assert [gap for step in session.train() for gap in step.gaps][:1] == [("gradient/0_output_0", NONE)]
    assert "gradient/0_output_0" in session.train()[-1].values


def test_read_back(tmp_path):
    """In a real run: names, roles, collections, values beside the activations of the step, summaries."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    run = tmp_path / "run"
    every = luff.config.SaveConfig(save_interval=1)
    hook = luff.torch.attach(
        model,
        run=run,
        collections=[
            luff.config.Collection("outputs", save_config=every),
            luff.config.Collection("output_gradients", save_config=every),
            luff.config.Collection("input_gradients", forms=["summary"], save_config=every),
        ],
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = []
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        out = model(x.requires_grad_())
        out.retain_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()
        wanted.append((array(out.grad), array(x.grad)))
    hook.close()
    with luff.open_trial(run) as trial:
        assert set(trial.tensors(collection="output_gradients")) == {
            f"gradient/{name}_output_0" for name in ("0", "1", "2", "Sequential")
        }
        assert not set(trial.tensors(collection="gradients")) & set(
            trial.tensors(collection="output_gradients")
        )
        last = trial.tensor("gradient/2_output_0")
        assert last.role == "output_gradient"
        steps, gradients = last.stacked("TRAIN")
        assert list(steps) == [0, 1, 2]
        assert all(np.array_equal(a, b) for a, (b, _) in zip(gradients, wanted, strict=True))
        given = trial.tensor("gradient/Sequential_input_0").summaries("TRAIN")
        assert np.allclose(given["l2"], [np.linalg.norm(b) for _, b in wanted])
        activation = trial.tensor("0_output_0").value(1, mode="TRAIN")
        assert activation.shape == trial.tensor("gradient/0_output_0").value(1, mode="TRAIN").shape
        assert trial.gaps() == []
