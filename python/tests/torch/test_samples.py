"""Samples: the first rows of inputs of models and losses, as they were at the call."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import GapReason, Role
from luff.torch.patches import _functional
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


def array(tensor):
    return tensor.detach().clone().numpy()


@pytest.fixture
def functional(monkeypatch):
    """Wraps the functional losses for one test, as ``luff run`` does."""
    for name in (*_functional._KINDS, *_functional._DROPOUTS):
        monkeypatch.setattr(F, name, getattr(F, name), raising=False)
    _functional.install.__wrapped__()


def train(model, loss_fn, data, keep=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for x, y in data:
        optimizer.zero_grad()
        output = model(x)
        seen.append((array(x), array(output), array(y)))
        if keep:
            loss_fn(output, y).backward()
        else:
            loss_fn(model[-1:](output) if False else output, y).backward()
        del output
        optimizer.step()
    return seen


def same(step, prefix, values):
    for index, value in enumerate(values):
        np.testing.assert_array_equal(step.values[f"sample/{prefix}_input_{index}"], value)


@pytest.mark.parametrize("attached", [False, True])
def test_models_and_losses_from_the_first_step_on(watched, attached):
    model = cases.net(0.0)
    _, session = watched(ROLES, model=model if attached else None)
    seen = train(model, nn.CrossEntropyLoss(), cases.batches())
    assert len(session.train()) == len(seen)
    for step, (x, output, y) in zip(session.train(), seen, strict=True):
        same(step, "Sequential", [x])
        same(step, "CrossEntropyLoss", [output, y])
        assert not step.wholes
    kinds = {name: (role, path, kind) for name, role, path, kind in session.tensors}
    assert kinds["sample/Sequential_input_0"] == (Role.SAMPLE, "", "Sequential")
    assert kinds["sample/CrossEntropyLoss_input_1"] == (Role.SAMPLE, "", "CrossEntropyLoss")


def test_a_pass_that_makes_the_targets_of_a_step_is_no_training_on_its_rows(watched):
    _, session = watched(ROLES | {Role.OUTPUT})  # what was captured keeps the step open
    model, target = cases.net(0.0), cases.net(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in cases.batches():
        optimizer.zero_grad()
        output = model(x)
        with torch.no_grad():
            wanted = target(x + 1)  # as of a target network
        nn.MSELoss()(output, wanted).backward()
        optimizer.step()
    assert session.train()
    for step in session.train():
        assert [name for name in step.values if name.startswith("sample/Sequential")] == [
            "sample/Sequential_input_0"
        ]


def test_outputs_that_are_gone_by_the_first_backward_pass(watched):
    _, session = watched(ROLES)
    model = cases.net(0.0)
    ((x, y),) = cases.batches(1)
    expected = array(model(x))
    model.zero_grad()
    torch.manual_seed(0)
    nn.CrossEntropyLoss()(model(x), y).backward()
    for buffer in model.buffers():
        del buffer
    (step,) = session.train() or [session.open]
    assert np.allclose(step.values["sample/CrossEntropyLoss_input_0"], expected, atol=1e-6)
    np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_1"], array(y))


@pytest.mark.parametrize("scale", [1, 4])
def test_a_likelihood_of_a_log_softmax_has_one_name(watched, functional, scale):
    """In the graph it is a cross entropy."""
    _, session = watched(ROLES)
    model = nn.Sequential(cases.net(0.0), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, evaluated = [], []
    for x, y in cases.batches(4):
        model.train()
        output = model(x)
        seen.append((array(output), array(y)))
        optimizer.zero_grad()
        (F.nll_loss(output, y) / scale).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(x)
            evaluated.append((array(output), array(y)))
            F.nll_loss(output, y)
    model(x)
    for steps, values in ((session.train(), seen), (session.eval(), evaluated)):
        for step, arrays in zip(steps, values, strict=False):
            same(step, "NLLLoss", arrays)
            assert [name for name in step.scalars if "oss" in name] == ["NLLLoss_output_0"]


def test_functional_losses_in_training_and_evaluation(watched, functional):
    _, session = watched(ROLES)
    model = cases.net(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, evaluated = [], []
    for x, y in cases.batches(4):
        model.train()
        output = model(x)
        seen.append((array(output), array(y)))
        optimizer.zero_grad()
        F.cross_entropy(target=y, input=output, label_smoothing=0.1).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(x)
            evaluated.append((array(x), array(output), array(y)))
            F.cross_entropy(output, y)
    model(x)
    for step, values in zip(session.train(), seen, strict=True):
        same(step, "CrossEntropyLoss", values)
        assert [name for name in step.scalars if "oss" in name] == ["CrossEntropyLoss_output_0"]
    for step, (x, *values) in zip(session.eval(), evaluated, strict=False):
        same(step, "Sequential", [x])
        same(step, "CrossEntropyLoss", values)


def test_functional_losses_that_a_sum_holds_are_parts_of_it(watched, functional):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        output = model(x)
        F.mse_loss(output, torch.zeros(8, 3))  # of no backward pass
        first, second = F.cross_entropy(output, y), F.cross_entropy(output * 2, y)
        values = first.item(), second.item()
        total = first + 0.5 * second + 1e-3 * model.weight.square().sum()
        del first, second
        total.backward()
        optimizer.step()
        step = session.train()[-1]
        assert {name: value for name, value in step.scalars.items() if "oss" in name} == {
            "CrossEntropyLoss_part_0": values[0],
            "CrossEntropyLoss_part_1": values[1],
            "loss_output_0": total.item(),
        }
        same(step, "CrossEntropyLoss", [array(output), array(y), array(output * 2), array(y)])


@pytest.mark.parametrize("form", ["function", "module"])
@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (lambda loss, weight: -loss, [["CrossEntropyLoss"]]),
        (lambda loss, weight: weight.square().sum() * 1e-3 - loss / 2, [["CrossEntropyLoss"]]),
        (lambda loss, weight: -1.0 * (loss - 3), [["CrossEntropyLoss"]]),
        (lambda loss, weight: loss - 5.0, []),
        (lambda loss, weight: loss - 0.1 * loss.detach(), []),
        (lambda loss, weight: -((-loss).exp()), []),  # of no sign that the graph tells
    ],
)
def test_losses_with_a_minus_are_told(watched, functional, form, objective, expected):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = F.cross_entropy if form == "function" else nn.CrossEntropyLoss()
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        objective(loss_of(model(x), y), model.weight).backward()
        optimizer.step()
    told = [event["losses"] for event in session.json_events if event["kind"] == "maximised"]
    assert told == expected


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (lambda output, y, weight: -((output - y) ** 2).mean(), [["squared error"]]),
        (
            lambda output, y, weight: -((y - output).square().sum(1).mean() + weight.square().sum()),
            [["squared error"]],
        ),
        (lambda output, y, weight: -((output - 3.0) ** 2).mean(), [["squared error"]]),
        (lambda output, y, weight: -((output - y) * (output - y)).mean(), []),  # of two differences
        (lambda output, y, weight: -output.log_softmax(1)[:, 0].mean() - ((output - y) ** 2).mean(), []),
        (lambda output, y, weight: ((output - y) ** 2).mean(), []),
        (lambda output, y, weight: -(output**2).mean(), []),  # a variance that is made larger
        (
            lambda output, y, weight: -((output.pow(4).mean(0) - 3.0) ** 2).sum(),
            [],
        ),  # a kurtosis that is far from 3
        (lambda output, y, weight: -((output - output.mean()) ** 2).mean(), []),
        (lambda output, y, weight: -((output - y) ** 3).mean(), []),
    ],
)
def test_squared_errors_of_a_script_with_a_minus_are_told(watched, objective, expected):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        objective(model(x), F.one_hot(y, 3).float(), model.weight).backward()
        optimizer.step()
    told = [event["losses"] for event in session.json_events if event["kind"] == "maximised"]
    assert told == expected


def test_a_minus_is_withdrawn_when_the_loss_is_minimised_too(watched, functional):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for n, (x, y) in enumerate(cases.batches(4)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss if n == 2 else -loss).backward()
        optimizer.step()
    told = [event["losses"] for event in session.json_events if event["kind"] == "maximised"]
    assert told == [["CrossEntropyLoss"], []]


@pytest.mark.parametrize("kind", [lambda values: values.requires_grad_(), nn.Parameter])
def test_a_disturbance_that_is_to_make_the_loss_larger_is_no_mistake(watched, functional, kind):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3).requires_grad_(False)
    disturbance = kind(torch.zeros(6))
    optimizer = torch.optim.SGD([disturbance], lr=0.01)
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        (-F.cross_entropy(model(x + disturbance), y)).backward()
        optimizer.step()
    assert not [event for event in session.json_events if event["kind"] == "maximised"]


def _scaled_sum(output, y, loss):
    return (loss * 2 + (output**2).sum() / output.numel()) / 1e6


@pytest.mark.parametrize(
    ("objective", "weight"),
    [
        (lambda output, y, loss: loss / 1e6, 1e-6),
        (lambda output, y, loss: -loss * 1e-3 * 1e-3, 1e-6),
        (_scaled_sum, 2e-6),
        (lambda output, y, loss: loss, None),
        (lambda output, y, loss: loss + 1e-6 * output.square().mean(), None),  # one term of several
        (lambda output, y, loss: 0.01 * output.square().mean() + 1e-7 * loss, None),
        (lambda output, y, loss: (output**2).repeat(10**5, 1).sum() / 1e6, None),  # a mean over its elements
        (lambda output, y, loss: F.mse_loss(output * 1e6, F.one_hot(y, 3) * 1e6) / 1e12, None),  # large units
        (lambda output, y, loss: (1e-8 * output.square()).exp().mean() / 1e6, 1e-6),
        (lambda output, y, loss: F.mse_loss(output, F.one_hot(y, 3) * 1.0, reduction="sum") / 1e6, None),
    ],
)
def test_a_training_of_which_all_losses_are_scaled_to_nothing_is_told(watched, functional, objective, weight):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(20):
        optimizer.zero_grad()
        output = model(x)
        objective(output, y, F.cross_entropy(output, y)).backward()
        optimizer.step()
    told = [event["weight"] for event in session.json_events if event["kind"] == "faint_loss"]
    assert told == ([] if weight is None else [pytest.approx(weight)])


def test_a_scaler_does_not_hide_a_factor_of_the_loss(watched):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for x, y in cases.batches(20):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y) / 1e6).backward()
        scaler.step(optimizer)
        scaler.update()
    told = [event["weight"] for event in session.json_events if event["kind"] == "faint_loss"]
    assert told == [pytest.approx(1e-6)]


def test_roots_found_by_the_graph(watched):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in cases.batches(3):
        optimizer.zero_grad()
        y = torch.zeros(8, 3)
        output = model(x)
        torch._C._nn.mse_loss(output, y, 1).backward()
        optimizer.step()
        same(session.train()[-1], "MSELoss", [array(output), array(y)])


def test_the_outermost_loss_counts_and_calls_are_numbered(watched, functional):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.CrossEntropyLoss()

        def forward(self, output, target):
            return self.inner(output, target) + F.cross_entropy(output * 2, target)

    _, session = watched(ROLES)
    model, loss_fn = nn.Linear(6, 3), Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in cases.batches(2):
        optimizer.zero_grad()
        output = model(x)
        (loss_fn(output, y) + loss_fn(output + 1, 2 - y)).backward()
        optimizer.step()
        step = session.train()[-1]
        same(step, "Mixed", [array(output), array(y), array(output + 1), array(2 - y)])
        assert "sample/CrossEntropyLoss_input_0" not in step.values
        assert {"Mixed_output_0", "Mixed_output_1"} <= set(step.scalars)


def test_a_loss_with_parameters_is_a_loss(watched):
    class ScaledLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return ((output - target) ** 2).mean() * self.scale

    _, session = watched(ROLES)
    model, loss_fn = nn.Linear(6, 3), ScaledLoss()
    optimizer = torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.1)
    for x, _ in cases.batches(3):
        optimizer.zero_grad()
        y, output = torch.zeros(8, 3), model(x)
        loss = loss_fn(output, y)
        loss.backward()
        optimizer.step()
        same(session.train()[-1], "ScaledLoss", [array(output), array(y)])
        assert session.train()[-1].scalars["ScaledLoss_output_0"] == loss.item()
        assert "ScaledLoss_scale" in session.train()[-1].values
    with torch.no_grad():
        loss_fn(model(x), y)
        model(x)
    assert session.eval()[0].scalars["ScaledLoss_output_0"] == loss_fn(model(x), y).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_large_values_are_their_first_rows(watched, dtype):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x, small=None, options=None):
            return (self.weight * x.sum()).sum()

    _, session = watched(ROLES)
    model = Part()
    whole = (torch.arange(4000 * 40) % 251).reshape(40, 4000).to(dtype).t()  # neither is contiguous
    for _ in range(2):
        model(whole, options={"wide": torch.zeros(1, 200_000)}, small=torch.ones(())).backward()
        model.weight.grad = None
    step = session.train()[0]
    rows = (64 << 10) // (40 * whole.element_size())
    got = step.values["sample/Part_input_0"]
    assert got.shape == (min(rows, 4000), 40)
    assert (got.astype(np.float64) == whole[:rows].to(torch.float64).numpy()).all()
    assert step.wholes.get("sample/Part_input_0") == ([4000, 40] if rows < 4000 else None)
    assert step.values["sample/Part_input_1"].shape == (1, 200_000)  # a row of up to 1 MiB is kept
    assert step.values["sample/Part_input_2"].size == 1


def test_a_row_beyond_the_limit_and_what_has_no_memory_are_gaps(watched):
    class Part(nn.Linear):
        def forward(self, x, more):
            return super().forward(torch.ones(1, 2)).sum()

    _, session = watched(ROLES)
    model = Part(2, 1)
    model(torch.ones(1), torch.ones(1)).backward()
    model(torch.zeros(2, 300_000), torch.ones(2, device="meta")).backward()
    model(torch.ones(1), torch.ones(1)).backward()
    reasons = dict(session.train()[1].gaps)
    assert reasons["sample/Part_input_0"] == GapReason.TOO_MANY
    assert reasons["sample/Part_input_1"] == GapReason.UNSUPPORTED


def test_samples_of_one_call_have_the_same_rows(watched):
    _, session = watched(ROLES)
    model = nn.Linear(6, 500)
    loss_fn = nn.CrossEntropyLoss()
    for _ in range(2):
        loss_fn(model(torch.randn(300, 6)), torch.randint(0, 500, (300,))).backward()
    for step in [*session.train(), session.open]:
        assert step.values["sample/CrossEntropyLoss_input_0"].shape == (32, 500)
        assert step.values["sample/CrossEntropyLoss_input_1"].shape == (32,)
        assert step.wholes["sample/CrossEntropyLoss_input_1"] == [300]


def test_calls_are_bounded(watched):
    _, session = watched(ROLES)
    model, loss_fn = nn.Linear(6, 3), nn.CrossEntropyLoss()
    for _ in range(2):
        sum(loss_fn(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long)) for _ in range(40)).backward()
    names = [name for name in session.names if name.startswith("sample/")]
    assert sum("Linear" in name for name in names) == 8
    assert sum("Cross" in name for name in names) == 16


def test_nothing_is_kept_where_nobody_asks(watched):
    _, session = watched()
    train(cases.net(0.0), nn.CrossEntropyLoss(), cases.batches())
    assert not [name for name in session.names if name.startswith("sample/")]


# Facts about calls of losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["module", "function"])
@pytest.mark.parametrize(
    ("last", "made_by"),
    [
        (nn.Identity(), []),
        (nn.ReLU(), ["relu"]),
        (nn.Softmax(dim=1), ["softmax"]),
        (nn.Sequential(nn.Tanh(), nn.Flatten()), ["tanh"]),
        (nn.Sequential(nn.ReLU(), nn.LayerNorm(3)), []),
    ],
)
def test_what_made_the_input_of_a_loss(watched, functional, form, last, made_by):
    _, session = watched(ROLES)
    model = nn.Sequential(nn.Linear(6, 3), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = F.cross_entropy if form == "function" else nn.CrossEntropyLoss()
    for x, y in cases.batches(6):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "loss_input"]
    assert [event["made_by"] for event in events] == made_by  # said once
    assert all((event["loss"], event["call"]) == ("CrossEntropyLoss", 0) for event in events)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (nn.Sequential(nn.Sigmoid(), nn.Flatten(), nn.Softmax(dim=1)), [("softmax", "sigmoid")]),
        (nn.Sequential(nn.ReLU(), nn.LogSoftmax(dim=1)), [("log_softmax", "relu")]),
        (nn.Sequential(nn.ReLU(), nn.LayerNorm(3), nn.LogSoftmax(dim=1)), [("log_softmax", None)]),
    ],
)
def test_what_lies_behind_that(watched, functional, last, told):
    _, session = watched(ROLES)
    model = nn.Sequential(nn.Linear(6, 3), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "loss_input"]
    assert [(event["made_by"], event.get("behind")) for event in events] == told


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (lambda model, x: model(model(x)), 1),  # a rollout
        (lambda model, x: model(model(x).detach()), 0),
        (lambda model, x: model(x) + model(x + 1), 0),  # twins
    ],
)
def test_a_model_that_gets_what_the_graph_has_made(watched, functional, forward, told):
    _, session = watched(ROLES)
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in cases.batches(4):
        optimizer.zero_grad()
        forward(model, x).square().mean().backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "made_inputs"]
    assert [event["model"] for event in events] == ["Linear"] * told


def test_parts_that_the_loop_calls_get_what_the_part_before_has_made(watched, functional):
    _, session = watched(ROLES)
    parts = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 3)])
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        F.cross_entropy(parts[1](parts[0](x.requires_grad_()).relu()), y).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "made_inputs"]
    assert [event["model"] for event in events] == ["1"]


def test_what_made_the_input_of_each_call(watched, functional):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for n, (x, y) in enumerate(cases.batches(6)):
        optimizer.zero_grad()
        second = model(x).relu() if n < 4 else model(x)
        (F.cross_entropy(model(x), y) + F.cross_entropy(second, y)).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "loss_input"]
    assert [(event["call"], event["made_by"]) for event in events] == [(1, "relu"), (1, "")]


@pytest.mark.parametrize("by_function", [True, False])
def test_dropout_in_an_evaluation(watched, functional, by_function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(6, 3), nn.Dropout(0.5)

        def forward(self, x):
            return self.layer(F.dropout(x, p=0.25) if by_function else self.drop(x))

    _, session = watched(ROLES)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        model.train()
        for x, y in cases.batches(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(x), y)
    events = [event for event in session.json_events if event["kind"] == "dropout_in_evaluation"]
    assert [event["p"] for event in events] == ([0.25] * 8 if by_function else [])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_wrapped_dropout_draws_as_before_and_can_be_scripted(watched, functional):
    watched(ROLES)
    x, state = torch.ones(64), torch.get_rng_state()
    with torch.no_grad():
        ours = F.dropout(x, 0.5, training=True)
        torch.set_rng_state(state)
        assert torch.equal(ours, torch.dropout(x, 0.5, True))
    scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).eval())
    assert scripted(torch.ones(2, 6)).shape == (2, 3)


@pytest.mark.parametrize("form", ["module", "function"])
@pytest.mark.parametrize(
    ("flattened", "crossed"),
    [
        (lambda o, y: (o.reshape(-1, 3), y.reshape(-1)), []),
        (lambda o, y: (o.transpose(0, 1).reshape(-1, 3), y.reshape(-1)), ["rows"]),
        (lambda o, y: (o.transpose(0, 1).reshape(-1, 3), y.t().contiguous().view(-1)), []),
        (lambda o, y: (o.transpose(0, 1).reshape(-1, 3), y.t().reshape(-1)), []),
        (lambda o, y: (o.permute(0, 2, 1).reshape(-1, 3), y.reshape(-1)), ["classes"]),
        (lambda o, y: (o.permute(0, 2, 1), y), []),
        (lambda o, y: (o.reshape(8, 3, 5), y), ["axes"]),
        (lambda o, y: (o.reshape(8, 15).reshape(8, 5, 3).reshape(8, 3, 5), y), []),
        (lambda o, y: (o[:, 0], y[:, 0]), []),
    ],
)
def test_how_the_rows_of_a_loss_were_flattened(watched, functional, form, flattened, crossed):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)  # of (samples, places, features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = F.cross_entropy if form == "function" else nn.CrossEntropyLoss()
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(*flattened(model(torch.randn(8, 5, 6)), torch.randint(0, 3, (8, 5)))).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "loss_rows"]
    assert [event["crossed"] for event in events] == crossed  # said once
    assert all((event["loss"], event["target"]) == ("CrossEntropyLoss", [8, 5]) for event in events)


def test_classes_of_one_place_a_row_are_not_cut(watched, functional):
    """(N, C, 1, 1), as a pooling of all places gives, is (N, C) in the same order."""
    _, session = watched(ROLES)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AvgPool2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 1, 6, 6)).view(-1, 3), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
    assert [event for event in session.json_events if event["kind"] == "loss_rows"] == []


def test_rows_of_heads_and_of_numbers_that_were_flattened(watched, functional):
    _, session = watched(ROLES)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        out = model(torch.randn(8, 5, 6))
        optimizer.zero_grad()
        loss = F.cross_entropy(out.view(-1, 2), torch.randint(0, 2, (8, 5, 2)).view(-1))  # two heads
        loss = loss + F.mse_loss(out[..., 0].t().reshape(-1), torch.randn(8, 5).view(-1))  # crossed
        (loss + F.mse_loss(out.flatten(), torch.randn(8, 5, 4).flatten())).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "loss_rows"]
    assert [(event["loss"], event["call"], event["crossed"]) for event in events] == [("MSELoss", 0, "rows")]


@pytest.mark.parametrize("cut", ["number", "data", "output"])
def test_a_loss_that_is_cut_off_from_the_model_is_followed_like_any_other(watched, functional, cut):
    _, session = watched(ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        output = model(x).detach() if cut == "output" else model(x)
        loss = F.cross_entropy(output, y)
        loss = torch.tensor(loss.item()) if cut == "number" else loss.data if cut == "data" else loss
        loss.requires_grad_()
        loss.backward()
        optimizer.step()
    steps = session.train()
    assert [step.scalars["loss_output_0"] > 0 for step in steps] == [True] * 3
    reached = [event for event in session.json_events if event.get("kind") == "reach"]
    assert len(reached) > 1
    assert all(event["reached_count"] == 0 for event in reached)
