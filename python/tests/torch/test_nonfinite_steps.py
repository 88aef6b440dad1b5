"""Steps that are written in different ways and make NaN: the run must name the producer, with operator and line."""

from __future__ import annotations

from functools import partial

import pytest
import test_nonfinite
import torch
import torch.nn.functional as F
from luff.torch.evidence import _evidence
from luff.torch.replay import _isolation
from test_nonfinite import data
from torch import nn

PROGRAMS = {}
program = partial(test_nonfinite.program, programs=PROGRAMS)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Allows more time, for a loaded machine."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)
    monkeypatch.setattr(_isolation, "SECONDS", 60.0)


class Colour(nn.Module):
    """A loss without parameters: a distance of channels, which is zero where they are alike."""

    def forward(self, x):
        red, green = x[:, :2].mean(1), x[:, 2:].mean(1)
        return torch.pow(torch.pow(red - green, 2), 0.5)  # NaN here


class Smooth(nn.Module):
    def forward(self, x):
        return (x[:, 1:] - x[:, :-1]).pow(2).mean()


def each_step(step_of, width=4):
    """Trains with `step_of(model, optimizer, x, step)`."""
    model = nn.Linear(4, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = data(step)
        step_of(model, optimizer, x * 0 if step == 3 else x, step)


@program("backward", "pow", "derivative of a power at zero")
def one_of_several_losses_of_one_model():
    model = nn.Linear(4, 4, bias=False)
    colour, smooth = Colour(), Smooth()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(8):
        x = data(step) * (0 if step == 3 else 1)
        made = model(x)
        smoothness = 10 * smooth(made)
        distance = torch.mean(colour(made))
        size = made.mean() ** 2
        loss = smoothness + distance + size
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@program("backward", "sqrt", "derivative of the square root at zero")
def loss_without_a_name():
    def step_of(model, optimizer, x, step):
        y = model(x) * (step != 3)
        optimizer.zero_grad()
        torch.sqrt((y**2).sum(1)).mean().backward()  # NaN here
        optimizer.step()

    each_step(step_of)


@program("loss", "log", "logarithm of zero")
def logarithm_without_a_name():
    def step_of(model, optimizer, x, step):
        optimizer.zero_grad()
        F.mse_loss(torch.log(model(x).abs() * (step != 3)), torch.zeros(8, 4)).backward()  # NaN here
        optimizer.step()

    each_step(step_of)


class Trainer:
    """Keeps its loss in an attribute, and its backward pass in a method."""

    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def forward(self, x):
        self.made = self.model(x)

    def backward_model(self, step):
        self.loss = self.made.mean()
        self.loss = self.loss + torch.sqrt((self.made * (step != 3)) ** 2).mean()  # NaN here
        self.loss.backward()

    def optimize(self, x, step):
        self.forward(x)
        self.optimizer.zero_grad()
        self.backward_model(step)
        self.optimizer.step()


@program("backward", "sqrt", "derivative of the square root at zero")
def loss_in_an_attribute():
    trainer = Trainer()
    for step in range(6):
        trainer.optimize(data(step), step)


@program("backward", "sqrt", "derivative of the square root at zero")
def loss_that_is_added_to():
    def step_of(model, optimizer, x, step):
        y = model(x)
        loss = y.mean()
        loss += torch.sqrt((y * (step != 3)) ** 2).mean()  # NaN here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of)


@program("loss", "log", "logarithm of zero")
def loss_in_two_statements():
    def step_of(model, optimizer, x, step):
        probabilities = torch.softmax(model(x) * (1e4 if step == 3 else 1), 1)
        each = -(torch.eye(4).repeat(2, 1) * torch.log(probabilities)).sum(1)  # NaN here
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        step_of(model, optimizer, data(step), step)


@program("loss", "exp", "exponential overflows")
def ratio_of_what_overflowed_before():
    def step_of(model, optimizer, x, step):
        powers = torch.exp(model(x) + (1000 if step == 3 else 0))  # NaN here
        shares = powers / powers.sum(1, keepdim=True)
        loss = shares[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of)


@program("backward", "sqrt", "a gradient of zero is multiplied by it")
def branch_that_is_not_taken():
    def step_of(model, optimizer, x, step):
        y = model(x)
        ok = (y > 0) | (step != 3)
        root = torch.where(ok, torch.sqrt(y + (0 if step == 3 else 1e3)), torch.zeros(()))  # NaN here
        loss = root.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        step_of(model, optimizer, data(step), step)


@program("backward", "hypot", "length of the point zero")
def length_of_nothing():
    def step_of(model, optimizer, x, step):
        y = model(x) * (step != 3)
        loss = torch.hypot(y[:, 0], y[:, 1]).mean()  # NaN here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of)


@program("loss", "mean", "mean of no element")
def mean_over_a_mask_that_leaves_nothing():
    def step_of(model, optimizer, x, step):
        y = model(x)
        kept = y[x[:, 0] > (100 if step == 3 else -100)]
        loss = kept.pow(2).mean()  # NaN here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of)


@program("input", "std", "standard deviation of one sample")
def targets_that_the_script_normalises():
    def step_of(model, optimizer, x, step):
        wanted = x[:1, :1] if step == 3 else x[:, :1]
        wanted = (wanted - wanted.mean(0)) / (wanted.std(0) + 1e-8)  # NaN here
        loss = F.mse_loss(model(x[: len(wanted)]), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of, 1)


@program("loss", "log", "logarithm of zero")
def name_that_is_given_another_value():
    def step_of(model, optimizer, x, step):
        y = model(x)
        y = torch.relu(y - (1e3 if step == 3 else -1e3))
        y = torch.log(y)  # NaN here
        loss = y.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    each_step(step_of)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", PROGRAMS)
def test_producer_is_named(watched, name):
    test_nonfinite.check(watched, PROGRAMS[name])
