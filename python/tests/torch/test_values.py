"""Captured values are those of PyTorch: weights of the forward pass, gradients of the update, and so on."""

from __future__ import annotations

import copy

import cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from luff._codes import GapReason, Mode, Role
from luff.torch.capture._early import asks_for_values
from torch import nn

ALL = frozenset(Role)


def array(tensor):
    return tensor.detach().clone().numpy()


def test_weights_are_those_of_the_forward_pass_and_gradients_those_of_the_update(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights, gradients = [], []
    for x, y in cases.batches():
        weights.append(array(model.weight))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients.append(array(model.weight.grad))
        optimizer.step()
    for step, weight, gradient in zip(session.train(), weights, gradients, strict=True):
        assert np.array_equal(step.values["Linear_weight"], weight)
        assert np.array_equal(step.values["gradient/Linear_weight"], gradient)


def test_clipped_and_accumulated_gradients(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = []
    for index, (x, y) in enumerate(cases.batches(4)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if index % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            wanted.append(array(model.weight.grad))
            optimizer.step()
            optimizer.zero_grad()
    got = [step.values["gradient/Linear_weight"] for step in session.train()[1::2]]
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_fused_optimizer_under_a_scaler_shows_unscaled_gradients(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x, y = next(iter(cases.batches()))
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    (wanted,) = torch.autograd.grad(F.cross_entropy(twin(x), y), twin.weight)
    assert np.allclose(session.train()[0].values["gradient/Linear_weight"], array(wanted), rtol=1e-6)


def test_lbfgs_weights_and_gradients_of_each_evaluation(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    weights, gradients = [], []
    x, y = next(iter(cases.batches()))

    def closure():
        weights.append(array(model.weight))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        gradients.append(array(model.weight.grad))
        return loss

    optimizer.step(closure)
    assert len(session.train()) == len(weights) > 1
    for step, weight, gradient in zip(session.train(), weights, gradients, strict=True):
        assert np.array_equal(step.values["Linear_weight"], weight)
        assert np.array_equal(step.values["gradient/Linear_weight"], gradient)


def test_without_an_optimizer(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    for x, y in cases.batches(3):
        weight = array(model.weight)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradient = array(model.weight.grad)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        model(x)
        step = session.train()[-1]
        assert np.array_equal(step.values["Linear_weight"], weight)
        assert np.array_equal(step.values["gradient/Linear_weight"], gradient)


def test_frozen_parameters_have_weights_and_no_gradients(watched):
    _, session = watched()
    cases.frozen_layers()
    step = session.train()[1]
    assert "Sequential_0.weight" in step.values
    assert "gradient/Sequential_0.weight" not in step.values
    assert "gradient/Sequential_4.weight" in step.values


def test_shared_parameters_have_one_name(watched):
    _, session = watched()
    cases.shared_parameters()
    step = session.train()[1]
    assert "Tied_embed.weight" in step.values
    assert "Tied_head.weight" not in step.values
    assert step.times["Tied_embed.weight"] == 1


def test_modules_inputs_outputs_and_second_calls(watched):
    _, session = watched(ALL)
    cases.module_called_twice()
    step = session.train()[1]
    for name in (
        "Twice_input_0",
        "Twice_output_0",
        "act_output_0",
        "act_output_1",
        "fc_input_1",
        "out_output_0",
    ):
        assert name in step.values
    assert np.array_equal(step.values["act_output_1"], step.values["out_input_0"])
    assert np.array_equal(step.values["out_output_0"], step.values["Twice_output_0"])
    assert np.array_equal(step.values["CrossEntropyLoss_input_0"], step.values["Twice_output_0"])
    assert step.values["CrossEntropyLoss_input_1"].dtype == np.int64
    assert (np.maximum(step.values["fc_output_0"], 0) == step.values["act_output_0"]).all()
    roles = {name: role for name, role, _, _ in session.tensors}
    kinds = {name: kind for name, _, _, kind in session.tensors}
    assert roles["act_output_0"] == Role.OUTPUT
    assert kinds["act_output_0"] == "ReLU"
    assert kinds["Twice_fc.weight"] == "Linear"
    assert roles["Twice_fc.bias"] == Role.BIAS


def test_in_place_modules_show_input_and_output_apart(watched):
    _, session = watched(ALL)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    cases.loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = session.train()[1]
    assert (step.values["0_output_0"] < 0).any()
    assert (step.values["1_input_0"] < 0).any()
    assert (step.values["1_output_0"] >= 0).all()


def test_nested_structures_and_keywords(watched):
    _, session = watched(ALL)
    cases.double_and_dicts()
    step = session.train()[1]
    assert step.values["Nested_input_0"].dtype == np.float64
    assert step.values["Nested_input_1"] == 2.0
    assert step.values["Nested_output_0"].shape == (8, 3)
    assert np.array_equal(step.values["Nested_output_1"], step.values["Nested_input_0"])


def test_buffers_and_optimizer_state(watched):
    _, session = watched(ALL)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters())
    moments = []

    for x, y in cases.batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        moments.append(array(optimizer.state[model[0].weight]["exp_avg"]))
    got = [step.values["optimizer/Adam.exp_avg/Sequential_0.weight"] for step in session.train()]
    assert all(np.array_equal(a, b) for a, b in zip(got, moments, strict=True))
    assert session.train()[2].values["Sequential_1.num_batches_tracked"] == 3
    assert np.array_equal(
        session.train()[2].values["Sequential_1.running_mean"], array(model[1].running_mean)
    )


def test_functional_loss_inputs_by_the_graph(watched):
    _, session = watched(ALL)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in cases.batches(2):
        optimizer.zero_grad()
        target = torch.ones(8, 3)
        out = model(x)
        F.mse_loss(out, target).backward()
        wanted = array(out)
        optimizer.step()
    step = session.train()[1]
    assert np.array_equal(step.values["MSELoss_input_0"], wanted)
    assert (step.values["MSELoss_input_1"] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(watched, dtype):
    _, session = watched()
    model = nn.Linear(6, 3).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6).to(dtype)
    loss = model(x).square().mean()
    loss.backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    got = session.train()[0].values["gradient/Linear_weight"]
    assert np.array_equal(got.astype(np.float64), gradient.double().numpy())
    assert session.train()[0].scalars["loss_output_0"] == pytest.approx(float(loss.detach().double()))


def test_strided_gradients(watched):
    _, session = watched()
    weight = nn.Parameter(torch.randn(4, 6).t())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight * torch.arange(24.0).reshape(6, 4)).sum().backward()
    wanted = array(weight.grad)
    before = array(weight)
    optimizer.step()
    values = session.train()[0].values
    assert np.array_equal(values["SGD.group0.param0"], before)
    assert np.array_equal(values["gradient/SGD.group0.param0"], wanted)


def test_a_parameter_that_changes_type(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cases.loop(model, optimizer)
    model.double()
    cases.loop(model, optimizer, data=[(x.double(), y) for x, y in cases.batches()])
    assert session.train()[0].values["Linear_weight"].dtype == np.float32
    assert session.train()[-1].values["Linear_weight"].dtype == np.float64


def test_what_cannot_be_read_is_a_gap(watched):
    _, session = watched()
    model = nn.Embedding(9, 4, sparse=True).bfloat16()
    model(torch.tensor([1, 1, 3])).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert ("gradient/Embedding_weight", 7) in session.train()[0].gaps


def test_tensors_of_another_device_are_gaps_and_nothing_is_copied_from_it(watched):
    """Needs no accelerator: memory of the device "meta" cannot be read, and reading a number from it would raise."""
    _, session = watched(ALL)
    model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.zeros(1, 2, device="meta")).sum().backward()
        optimizer.step()
    step = session.train()[-1]
    names = ["Sequential_0.weight", "gradient/Sequential_0.weight", "0_output_0", "loss_output_0"]
    for name in [*names, "optimizer/SGD.momentum_buffer/Sequential_0.weight"]:
        assert (name, 7) in step.gaps
    assert step.values == {}
    assert step.scalars["optimizer/SGD.group0.lr"] == 0.1


def test_compiled_activations_are_a_gap(watched):
    _, session = watched(ALL)
    cases.compiled()
    step = session.train()[-1]
    assert ("", 6) in step.gaps
    assert "gradient/Sequential_0.weight" in step.values
    assert "Sequential_output_0" in step.values
    assert "0_output_0" not in step.values


@pytest.mark.filterwarnings("ignore")  # warnings of dynamo
def test_a_compiled_optimizer_step_is_a_gap_and_gradients_come_from_backward(watched):
    hook, session = watched()
    cases.compiled_in_place_with_step()
    hook.close()
    train = session.train()
    assert len(train) == 6
    assert all(("", 8) in step.gaps for step in train[1:-1])
    assert all("gradient/Sequential_0.weight" in step.values for step in train[2:])


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_modules_are_a_gap(watched):
    _, session = watched(ALL)
    cases.scripted()
    assert ("", 14) in session.train()[1].gaps


def test_saved_tensors_are_not_unpacked_under_hooks(watched):
    _, session = watched(ALL)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unpacked = []

    def unpack(packed):
        unpacked.append(packed)
        return packed

    for x, y in cases.batches(2):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            loss = F.cross_entropy(model(x), y)
        before = len(unpacked)
        calls = []
        loss.register_hook(lambda grad, calls=calls: calls.append(len(unpacked)))
        loss.backward()
        assert calls == [before]
        optimizer.step()
    assert session.train()[1].scalars["CrossEntropyLoss_output_0"] == loss.item()


def test_custom_tensors_and_scalars(watched):
    import luff.torch

    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    luff.torch.save_scalar("before", 1.5)
    hook.save_tensor("mine", np.arange(4, dtype=np.int32))
    hook.save_tensor("torch", torch.arange(3.0))
    hook.save_tensor("turned", torch.arange(6.0).reshape(2, 3).T)
    cases.loop(model, optimizer, data=list(cases.batches(1)))
    step = session.train()[0]
    assert step.scalars["scalar/before"] == 1.5
    assert (step.values["mine"] == np.arange(4)).all()
    assert (step.values["torch"] == np.arange(3)).all()
    assert (step.values["turned"] == np.arange(6).reshape(2, 3).T).all()


def test_what_is_saved_between_steps_is_bounded_and_a_gap_names_what_is_lost(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gaps = []
    session.gap = lambda tensor, reason, forms, count=1: gaps.append((session.names[tensor], reason))
    for n in range(1026):
        hook.save_scalar(f"n{n}", n)
    hook.save_tensor("empty", torch.zeros(0, 3))
    half = torch.zeros(32 << 20, dtype=torch.uint8)
    for name in ("first", "second", "third"):
        hook.save_tensor(name, half)
    assert gaps == [(name, GapReason.TOO_MANY) for name in ("scalar/n1024", "scalar/n1025", "third")]
    del session.gap
    cases.loop(model, optimizer, data=list(cases.batches(1)))
    step = session.train()[0]
    assert [name for name in step.scalars if name.startswith("scalar/")] == [
        f"scalar/n{n}" for n in range(1024)
    ]
    assert {"empty", "first", "second"} <= step.values.keys() and "third" not in step.values


def test_what_is_saved_before_the_backward_pass_goes_into_the_next_step(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n, (x, y) in enumerate(cases.batches(3)):
        loss = F.cross_entropy(model(x), y)
        hook.save_scalar("undecided", n)
        loss.backward()
        hook.save_scalar("decided", n)
        optimizer.step()
    assert [step.scalars.get("scalar/undecided") for step in session.train()] == [None, 0, 1]
    assert [step.scalars["scalar/decided"] for step in session.train()] == [0, 1, 2]


def test_what_is_saved_after_the_last_step_gets_a_step_of_its_own(watched):
    model = nn.Linear(6, 3)
    hook, session = watched(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cases.loop(model, optimizer, data=list(cases.batches(2)))
    hook.save_scalar("accuracy", 0.5)
    hook.save_tensor("confusion", torch.arange(4.0))
    hook.close()
    last = session.steps[-1]
    assert last.mode == Mode.GLOBAL and len(session.train()) == 2
    assert last.scalars == {"scalar/accuracy": 0.5}
    assert list(last.values) == ["confusion"] and (last.values["confusion"] == np.arange(4)).all()


def test_the_model_is_described(watched):
    hook, session = watched()
    cases.evaluation_and_scheduler()
    document = session.documents["model"]
    (model,) = document["models"]
    assert model["name"] == "Sequential"
    types = [module["type"] for module in model["modules"]]
    assert types == ["Sequential", "Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear", "ReLU", "Linear"]
    assert model["modules"][4]["settings"]["p"] == 0.1
    weight = model["parameters"][0]
    assert (weight["name"], weight["shape"], weight["optimizer"], weight["group"]) == (
        "Sequential_0.weight", [16, 6], "AdamW", 0,
    )  # fmt: skip
    assert document["optimizers"][0]["groups"][0]["settings"]["weight_decay"] == 0.01
    assert document["schedulers"][0]["type"] == "StepLR"
    assert document["losses"][0]["type"] == "CrossEntropyLoss"
    assert session.documents["environment"]["torch"] == torch.__version__


def test_what_an_earlier_optimizer_has_trained_is_described_as_updated(watched):
    teacher, drawn, student = (torch.nn.Linear(4, 4) for _ in range(3))
    before = torch.optim.Adam(teacher.parameters(), lr=0.01)  # before anything is watched
    for _ in range(32):
        before.zero_grad()
        teacher(torch.randn(8, 4)).pow(2).mean().backward()
        before.step()
    del before
    _, session = watched()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        x = student(torch.randn(8, 4))
        (teacher(x) + drawn(x)).pow(2).mean().backward()
        optimizer.step()
    models = session.documents["model"]["models"]
    held = {model["name"]: [one.get("updated") for one in model["parameters"]] for model in models}
    assert sorted(held.values(), key=str) == [[None, None], [None, None], [True, True]]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("of_model", [True, False])
def test_a_scheduler_moves_the_rates_of_what_a_model_holds_only(watched, of_model):
    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = model.parameters() if of_model else [torch.zeros(1)]  # to work out a weight of the loss
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(held, lr=1.0), 1, 0.9)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    (told,) = session.documents["model"]["schedulers"]
    assert told["moved"] is of_model


def test_two_models_of_one_class_and_wrappers(watched):
    _, session = watched()
    cases.data_parallel()
    cases.plain()
    names = [name for name in session.names if name.endswith("0.weight") and "/" not in name]
    assert names == ["Sequential_0.weight", "Sequential_2_0.weight"]


def test_parts_called_from_outside_bear_the_owners_name(watched):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Linear(6, 1)
            self.actor = nn.Linear(6, 3)

    _, session = watched()
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for x, y in cases.batches(2):
        loss = F.cross_entropy(policy.actor(x), y) + policy.critic(x).mean()
        loss.backward()
        optimizer.step()
    assert "Policy_critic.weight" in session.train()[0].values
    assert "gradient/Policy_actor.weight" in session.train()[0].values


def test_a_watched_model_pickles_the_same(watched):
    import pickle

    model = nn.Sequential(nn.Linear(6, 3))
    before = pickle.dumps(model)
    hook, _ = watched(ALL, model=model)
    model(torch.zeros(1, 6))
    assert pickle.dumps(model) == before
    assert copy.deepcopy(hook) is hook


def test_a_model_is_not_kept_alive(watched):
    import gc
    import weakref

    watched()
    model = nn.Sequential(nn.Linear(6, 3))
    cases.loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


_SEEN = {Role.INPUT, Role.OUTPUT, Role.LOSS_INPUT, Role.LABEL}


def _in_place():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    return model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_step_that_opens_the_run_has_its_inputs_outputs_and_labels(watched):
    """Under `luff run` the first backward pass opens the run; the forward pass before it is recorded as well."""
    steps = []
    for attached in (True, False):
        torch.manual_seed(0)
        model, loss_fn, optimizer = _in_place()
        hook, session = watched(_SEEN, **({"model": model} if attached else {}))
        session.roles = {int(role) for role in _SEEN}
        for x, y in cases.batches(2):
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
        hook.close()
        steps.append(session.train())
    for seen, opened in zip(*steps, strict=True):
        assert {
            "Sequential_input_0",
            "0_output_0",
            "1_output_0",
            "CrossEntropyLoss_input_1",
        } <= seen.values.keys()
        assert seen.values.keys() == opened.values.keys()
        for name, value in seen.values.items():
            np.testing.assert_array_equal(value, opened.values[name], name)
    assert (opened.values["0_output_0"] < 0).any()
    assert (opened.values["1_output_0"] >= 0).all()
    first, later = steps[1]
    assert first.gaps == later.gaps == []


def test_what_does_not_fit_before_the_run_is_open_is_a_gap(watched, monkeypatch):
    from luff.torch.capture import _early

    monkeypatch.setattr(_early, "_MAX_BYTES", 6 * 8 * 4)
    _, session = watched(_SEEN)
    model, loss_fn, optimizer = _in_place()
    for x, y in cases.batches(2):
        loss_fn(model(x), y).backward()
        optimizer.step()
    first, later = session.train()
    lost = later.values.keys() - first.values.keys()
    assert lost
    assert {name for name, reason in first.gaps if reason == GapReason.NOT_SEEN} == lost
    assert later.gaps == []


def test_passes_that_no_backward_pass_follows_are_copied_a_few_times_only(watched):
    hook, session = watched(_SEEN)
    model, loss_fn, optimizer = _in_place()
    model.eval()
    kept = []
    for x, _ in cases.batches(12):
        model(x)
        kept.append(hook.machine.step.kept is not None)
    assert kept == [True] * 8 + [False] * 4
    x, y = next(iter(cases.batches(1)))
    loss_fn(model(x), y).backward()
    optimizer.step()
    assert session.train()[0].gaps == [("", int(GapReason.NOT_SEEN))]


def test_nothing_is_kept_unless_a_collection_can_take_it(watched):
    hook, session = watched({Role.WEIGHT})
    hook.machine.early = asks_for_values(
        {"defaults": False, "collections": [{"name": "w", "roles": ["weight"]}]}
    )
    model, loss_fn, optimizer = _in_place()
    x, y = next(iter(cases.batches(1)))
    loss = loss_fn(model(x), y)
    assert hook.machine.step.kept is None
    loss.backward()
    optimizer.step()
    assert session.train()[0].gaps == []


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_gradients_are_summed_in_a_copy(watched, coalesce, dtype):
    """Rows that a batch uses several times are summed, in the order of indices; the
    gradient itself does not change.
    """
    _, session = watched()
    model = nn.Embedding(20, 4, sparse=True).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in ([[3, 1], [3, 7]], [[5, 5], [5, 5]]):
        optimizer.zero_grad()
        (model(torch.tensor(ids)) * torch.randn(2, 2, 4, dtype=dtype)).sum().backward()
        if coalesce:
            model.weight.grad = model.weight.grad.coalesce()
        entries = model.weight.grad._nnz()
        wanted = model.weight.grad.clone().coalesce().values()
        weight = array(model.weight)
        optimizer.step()
        step = session.train()[-1]
        got = step.values["gradient/Embedding_weight"]
        assert got.shape == wanted.shape
        assert np.allclose(got, wanted.numpy(), rtol=1e-6)
        assert np.array_equal(step.values["Embedding_weight"], weight)
        assert model.weight.grad._nnz() == entries
        assert model.weight.grad.is_coalesced() == coalesce


def test_sparse_gradients_beyond_the_limit_are_a_gap(watched):
    _, session = watched()
    model = nn.Embedding(70_000, 4, sparse=True)
    model(torch.arange(66_000)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert ("gradient/Embedding_weight", 7) in session.train()[0].gaps
    assert "gradient/Embedding_weight" not in session.train()[0].values
