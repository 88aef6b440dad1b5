"""Small programs that make NaN in different ways: the run must name the producer, with operator and line."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence import _evidence
from luff.torch.replay import _isolation
from torch import nn

PROGRAMS = {}


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Allows more time, for a loaded machine."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)
    monkeypatch.setattr(_isolation, "SECONDS", 60.0)


def program(phase, operator="", words="", marked=True, programs=PROGRAMS):
    """Declares what the run must report: phase, operator, words of the reason; the line
    is the one marked `NaN here`.
    """

    def add(function):
        programs[function.__name__] = (function, phase, operator, words, marked)
        return function

    return add


def data(step, rows=8, columns=4):
    torch.manual_seed(step)
    return torch.randn(rows, columns)


def train(model, loss_of, steps=6, lr=0.01, batch=data):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        x = batch(step)
        optimizer.zero_grad()
        loss = loss_of(model, x, step)
        loss.backward()
        optimizer.step()


@program("loss", "log", "logarithm of zero")
def log_of_zero():
    def loss_of(model, x, step):
        p = torch.sigmoid(model(x).abs() * (1000 if step == 3 else 1))
        return -torch.log(1 - p).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of)


@program("loss", "log", "logarithm of a negative number")
def log_of_negative():
    def loss_of(model, x, step):
        y = model(x)
        return torch.log(y**2 - (5 if step == 3 else -1)).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of)


@program("backward", "sqrt", "derivative of the square root at zero")
def sqrt_backward_at_zero():
    def loss_of(model, x, step):
        y = model(x) * (0 if step == 3 else 1)
        return torch.sqrt(y**2).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of)


@program("loss", "sqrt", "square root of a negative number")
def sqrt_of_negative():
    def loss_of(model, x, step):
        y = model(x)
        return torch.sqrt(y - 100 * (step == 3) + 50).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of)


@program("loss", "div", "division by zero")
def division_by_zero():
    def loss_of(model, x, step):
        y = model(x)
        weight = (torch.arange(8) > (100 if step == 3 else 2)).float()
        return (y.squeeze(1) * weight).sum() / weight.sum()  # NaN here

    train(nn.Linear(4, 1), loss_of)


class Expo(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        e = torch.exp(self.linear(x))  # NaN here
        return e / e.sum(1, keepdim=True)


@program("forward", "exp", "exponential overflows")
def exp_overflow():
    train(Expo(), lambda model, x, step: model(x * (1e5 if step == 3 else 1)).pow(2).mean())


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = self.linear(x)
        return h, h + torch.exp(h) * (x - x)  # NaN here


@program("forward", "exp", "exponential overflows")
def model_whose_outputs_go_through_other_statements():
    model = Sampler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = data(step) * (1e5 if step == 3 else 1)
        optimizer.zero_grad()
        mean, drawn = model(x)
        fit, size = drawn.pow(2).mean(), mean.mean()
        loss = fit + size
        loss.backward()
        optimizer.step()


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        huge = self.linear(x) * 1e35
        wide = huge * 1e6 if x.abs().max() > 50 else huge  # NaN here
        return wide * torch.zeros(4)


@program("forward", "mul", "overflow")
def zero_times_infinity():
    train(Gate(), lambda model, x, step: model(x * (100 if step == 3 else 0.01)).sum())


@program("loss", "exp", "exponential overflows")
def infinity_minus_infinity():
    def loss_of(model, x, step):
        y = model(x) * (1e4 if step == 3 else 1)
        up = torch.exp(y.abs() + y.abs())  # NaN here
        down = torch.exp(y.abs() * 2)
        return (up - down).mean()

    train(nn.Linear(4, 1), loss_of)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).T
        scores = scores.masked_fill(mask, float("-inf"))
        return torch.softmax(scores, -1) @ x  # NaN here


@program("forward", "softmax", "everything is masked")
def softmax_over_a_masked_row():
    def loss_of(model, x, step):
        mask = torch.zeros(8, 8, dtype=torch.bool)
        mask[2] = step == 3
        return model(x, mask).pow(2).mean()

    train(Attention(), loss_of)


@program("backward", "pow", "derivative of a power at zero")
def norm_backward_by_hand():
    def loss_of(model, x, step):
        y = model(x) * (0 if step == 3 else 1)
        return ((y**2).sum(1) ** 0.5).mean()  # NaN here

    train(nn.Linear(4, 2), loss_of)


@program("loss", "acos", "arc cosine")
def acos_beyond_one():
    def loss_of(model, x, step):
        y = torch.tanh(model(x)) * (1.5 if step == 3 else 0.9)
        return torch.acos(y).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of, batch=lambda step: 9 * data(step))


@program("loss", "pow", "power of a fraction")
def power_of_a_negative_number():
    def loss_of(model, x, step):
        y = model(x)
        return ((y if step == 3 else y.abs() + 1) ** 1.5).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of)


@program("loss", "std", "one sample")
def deviation_of_one_sample():
    def loss_of(model, x, step):
        y = model(x)
        return y.std(0).mean()  # NaN here

    train(nn.Linear(4, 1), loss_of, batch=lambda step: data(step, rows=1 if step == 3 else 8))


@program("loss", "nll_loss", "mean over no label")
def labels_of_weight_zero():
    weight = torch.tensor([1.0, 0.0])

    def loss_of(model, x, step):
        y = torch.ones(8, dtype=torch.long) if step == 3 else torch.arange(8) % 2
        return F.cross_entropy(model(x), y, weight=weight)  # NaN here

    train(nn.Linear(4, 2), loss_of)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).half()  # NaN here


@program("forward", "to_copy", "overflow")
def half_precision_overflow():
    train(Half(), lambda model, x, step: model(x * (1e6 if step == 3 else 1)).float().mean())


@program("input", "", "holds NaN")
def nan_in_the_batch():
    def batch(step):
        x = data(step)
        if step == 3:
            x[1, 2] = math.nan  # NaN here
        return x

    train(nn.Linear(4, 1), lambda model, x, step: model(x).pow(2).mean(), batch=batch)


@program("input", "", "holds NaN", marked=False)
def nan_in_the_target():
    def loss_of(model, x, step):
        target = torch.zeros(8, 1)
        if step == 3:
            target[0] = math.nan
        return F.mse_loss(model(x), target)

    train(nn.Linear(4, 1), loss_of)


@program("weights", "", "before the first update", marked=False)
def nan_in_initial_weights():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight[0, 1] = math.nan
    train(model, lambda model, x, step: model(x).mean())


@program("weights", "", "buffer scale holds NaN", marked=False)
def nan_in_a_buffer():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return super().forward(x) * self.scale

    model = Scaled()

    def batch(step):
        if step == 3:
            model.scale.fill_(math.nan)
        return data(step)

    train(model, lambda model, x, step: model(x).mean(), batch=batch)


@program("optimizer", "", "is infinite", marked=False)
def learning_rate_that_explodes():
    train(nn.Linear(4, 1), lambda model, x, step: model(x).mean() * 10, lr=1e38)


@program("optimizer", "", "or the script itself has made it", marked=False)
def weights_that_the_script_writes_between_steps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def batch(step):
        if step == 3:
            with torch.no_grad():
                model[1].weight[0, 0] = math.nan
        return data(step)

    train(model, lambda model, x, step: model(x).pow(2).mean(), batch=batch)


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2).sum().reshape(()) / (x.sum() - x.sum())  # NaN here

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


@program("loss", "div", "division by zero")
def custom_function():
    def loss_of(model, x, step):
        y = model(x)
        return Root.apply(y) if step == 3 else y.mean()

    train(nn.Linear(4, 1), loss_of)


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return (y - y.mean(0)) / y.var(0).sqrt()  # NaN here


@program("forward", "", "")
def own_batch_norm_on_one_sample():
    train(
        OwnNorm(), lambda model, x, step: model(x).pow(2).mean(), batch=lambda s: data(s, 1 if s == 3 else 8)
    )


@program("loss", "div", "division by zero")
def cosine_similarity_by_hand():
    def loss_of(model, x, step):
        y = model(x) * (0 if step == 3 else 1)
        return (y * x).sum() / (y.norm() * x.norm())  # NaN here

    train(nn.Linear(4, 4), loss_of)


@program("backward", "acos", "derivative of the arc cosine at one")
def angle_of_parallel_vectors():
    def loss_of(model, x, step):
        y = model(x) * 0 + 1 if step == 3 else torch.tanh(model(x)) * 0.9
        return torch.acos(y).mean()  # NaN here

    train(nn.Linear(4, 2), loss_of)


@program("forward", "log", "logarithm of zero")
def line_inside_a_with_block():
    class Inner(nn.Linear):
        def forward(self, x):
            return torch.log(super().forward(x).abs() * x.abs().max().sign())  # NaN here

    def loss_of(model, x, step):
        with torch.autocast("cpu", enabled=False):
            out = model(x * 0 if step == 3 else x)
            total = out.mean()
        return total

    train(Inner(4, 1), loss_of)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", PROGRAMS)
def test_producer_is_named(watched, name):
    check(watched, PROGRAMS[name])


def check(watched, declared):
    """Runs a program and compares what is told with what it declares."""
    function, phase, operator, words, marked = declared
    hook, session = watched()
    function()
    hook.close()
    events = [event for event in session.json_events if event["kind"] == "nonfinite"]
    assert events, "nothing was told"
    best = events[-1]
    assert best["phase"] == phase, events
    assert operator in best.get("operator", ""), events
    assert words in best.get("reason", ""), events
    losses = [next(iter(step.scalars.values())) for step in session.train() if step.scalars]
    bad = next((at for at, value in enumerate(losses) if not math.isfinite(value)), len(losses))
    assert best["step"] in (bad, bad - 1)
    if marked:
        assert best["from"] == "replay", events
        assert "NaN here" in line_text(best), events


def line_text(event):
    with open(event["file"], encoding="utf-8") as file:
        return file.read().splitlines()[event["line"] - 1]


def test_near_a_model_without_modules_its_parameter_is_named(watched):
    """What lies behind `after` is never empty."""
    hook, session = watched()
    train(nn.Linear(4, 1), lambda model, x, step: (model(x) - x.sum()).pow(2).mean(), steps=12, lr=1e6)
    hook.close()
    modules = [event.get("module", "") for event in session.json_events if event["kind"] == "nonfinite"]
    assert "after Linear_bias" in modules, modules


def test_healthy_training_costs_and_says_nothing(watched):
    hook, session = watched()
    train(nn.Linear(4, 1), lambda model, x, step: model(x).pow(2).mean())
    assert [event for event in session.json_events if event["kind"] == "nonfinite"] == []
    assert not hook.machine.evidence.nonfinite.open


def test_overflow_that_a_scaler_leaves_out_says_nothing(watched):
    hook, session = watched()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(data(step)).pow(2).mean() * 100
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    hook.close()
    assert [event for event in session.json_events if event["kind"] == "nonfinite"] == []


def test_replay_off(watched, monkeypatch):
    monkeypatch.setenv("LUFF_REPLAY", "off")
    hook, session = watched()
    log_of_zero()
    hook.close()
    events = [event for event in session.json_events if event["kind"] == "nonfinite"]
    assert [event["from"] for event in events] == ["graph"]
    assert events[0]["operator"] == "log"
    assert events[0]["count"] >= 1


def test_training_is_bit_identical(watched):
    def weights():
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

        def loss_of(model, x, step):
            y = model(x)
            return (
                torch.log(y - 1).nan_to_num(0.0).mean() + (math.inf if step == 3 else 0) * 0
                if step == 3
                else y.mean()
            )

        train(model, loss_of, steps=8)
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    bare, state = weights()
    hook, _ = watched()
    seen, after = weights()
    hook.close()
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(bare, seen, strict=True))
    assert torch.equal(state, after)


def test_child_writes_nothing(watched, tmp_path):
    target = tmp_path / "written"

    class Noisy(nn.Linear):
        def forward(self, x):
            with open(target, "a", encoding="utf-8") as file:
                file.write("x")
            return torch.log(super().forward(x) * 0)

    hook, _ = watched()
    train(Noisy(4, 1), lambda model, x, step: model(x).mean(), steps=4)
    hook.close()
    assert target.read_text() == "xxxx"
