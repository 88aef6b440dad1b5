"""Terms of a loss that have no graph: the event `graphless_term`."""

from __future__ import annotations

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from luff.torch.evidence._graphless_terms import has_graphless_operand
from luff.torch.patches import _functional
from torch import nn
from torch.nn import functional

ROLES = DEFAULT_ROLES | {Role.SAMPLE, Role.OUTPUT}
HEAD = ["Net_value.0.bias", "Net_value.0.weight", "Net_value.2.bias", "Net_value.2.weight"]


class Net(nn.Module):
    def __init__(self, quiet=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.policy = nn.Linear(16, 3)
        self.value = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.quiet = quiet

    def forward(self, x):
        h = self.body(x)
        with torch.set_grad_enabled(not self.quiet):
            values = self.value(h).squeeze(-1)
        return self.policy(h), values


@pytest.fixture(autouse=True)
def _functions():
    _functional.install()


def train(watched, step, model=None, steps=6):
    """Returns the events; `step` gets the loss of the policy, values and targets, and returns the loss."""
    model = model or Net()
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(16, 6)
        scores, values = model(x)
        a = functional.cross_entropy(scores, (x[:, 0] > 0).long())
        optimizer.zero_grad()
        step(a, values, x[:, 1] * 2, scores).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "graphless_term"]
    return [(event["loss"], event["lost"], event["layers"]) for event in events]


def mse(*args, **kwargs):
    return functional.mse_loss(*args, **kwargs)  # replaced by now


def kl(*args, **kwargs):
    return functional.kl_div(*args, **kwargs)


@pytest.mark.parametrize(
    ("step", "loss"),
    [
        (lambda a, v, r, _: a + 0.5 * mse(v.detach(), r), "MSELoss"),
        (lambda a, v, r, _: a + 0.5 * mse(r, v.detach()), "MSELoss"),
        (lambda a, v, r, _: a + 0.5 * mse(v.data, r) - 0.01 * a.exp(), "MSELoss"),
        (lambda a, v, r, _: a - nn.L1Loss()(v.detach(), r), "L1Loss"),
        (lambda a, v, r, _: a + mse(torch.from_numpy(v.detach().numpy()), r).item(), "MSELoss"),
        (lambda a, v, r, _: sum([a, mse(v.detach(), r)]), "MSELoss"),
        (lambda a, v, r, _: torch.stack([a, mse(v.detach(), r)]).mean(), "MSELoss"),
        (lambda a, v, r, _: a + mse(v.detach(), r, reduction="none").mean(), "MSELoss"),
        (
            lambda a, v, r, _: a + kl(functional.logsigmoid(v.detach()), r.sigmoid(), reduction="batchmean"),
            "KLDivLoss",
        ),
        (lambda a, v, r, _: a + functional.l1_loss(v.detach().sigmoid(), r), "L1Loss"),
    ],
)
def test_what_a_loss_gets_is_detached(watched, step, loss):
    assert train(watched, step) == [(loss, "argument", HEAD)]


def test_a_function_that_is_not_followed(watched):
    assert train(watched, lambda a, v, r, _: a + mse(v.detach().square(), r)) == []


@pytest.mark.parametrize(
    "step",
    [
        lambda a, v, r, _: a + 0.5 * mse(v, r).item(),
        lambda a, v, r, _: a + 0.5 * float(mse(v, r).detach()),
        lambda a, v, r, _: a + mse(v, r).data,
        lambda a, v, r, _: a + torch.tensor(mse(v, r).item()),
        lambda a, v, r, _: a + nn.MSELoss()(v, r).item(),
        lambda a, v, r, _: (a + mse(v, r).detach()) / 4,
    ],
)
def test_only_the_value_is_added(watched, step):
    assert train(watched, step) == [("MSELoss", "value", HEAD)]


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (lambda a, v, r, _: 0 + (a, mse(v, r))[0], "nothing"),
        (lambda a, v, r, z: 0 + (mse(v, r), a + mse(z[:, 0], r))[1], "nothing"),
        (lambda a, v, r, _: 0 + a + mse(v, r).item(), "value"),
        (lambda a, v, r, _: 0 + (0.5 * a, mse(v, r))[0], "value"),  # what is added is not known
    ],
)
def test_nothing_is_added(watched, step, lost):
    assert train(watched, step) == [("MSELoss", lost, HEAD)]


def test_a_term_under_no_grad_in_the_model(watched):
    assert train(watched, lambda a, v, r, _: a + mse(v, r), Net(quiet=True)) == [
        ("MSELoss", "argument", HEAD)
    ]


def test_divergence_of_detached_scores(watched):
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.aux = nn.Linear(6, 3), nn.Linear(6, 4)

        def forward(self, x):
            return self.main(x), self.aux(x)

    def step(a, aux, r, _):
        target = torch.softmax(torch.randn(16, 4), 1)
        return a + kl(functional.log_softmax(aux.detach(), 1), target, reduction="batchmean")

    assert train(watched, step, Student()) == [
        ("KLDivLoss", "argument", ["Student_aux.bias", "Student_aux.weight"])
    ]


@pytest.mark.parametrize(
    "step",
    [
        lambda a, v, r, _: a + 0.5 * mse(v, r),
        lambda a, v, r, _: a,  # a head that rests
        lambda a, v, r, _: a + 0.01,  # a constant
        lambda a, v, r, z: 0 + a + 0 * mse(z.detach()[:, 0], r),  # a metric of what is trained
        lambda a, v, r, _: (a, mse(v.detach(), r))[0],  # a logged loss of a head that rests
        lambda a, v, r, z: a + mse(z[:, 0], v.detach()),  # detached targets
        lambda a, v, r, _: a * (r - v.detach()).mean() + mse(v, r),  # a baseline with a term of its own
        lambda a, v, r, _: a + mse(v, (r + 0.9 * v).detach()),  # learnt from its own estimate
        lambda a, v, r, z: a + mse(z[:, 0].detach(), v) + 0.25 * mse(z[:, 0], v.detach()),  # commitment
        lambda a, v, r, _: a + 0.01 * sum(p.detach().norm() for p in [v]),  # a norm
    ],
)
def test_look_alikes_are_silent(watched, step):
    assert train(watched, step) == []


def test_frozen_heads_and_teachers(watched):
    model = Net()
    model.value.requires_grad_(False)
    assert train(watched, lambda a, v, r, _: a + mse(v.detach(), r), model) == []


def test_a_pooler_that_rests_beside_a_metric(watched):
    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.pooler, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x):
            h = self.body(x)
            return self.head(h), torch.tanh(self.pooler(h))

    step = lambda a, v, r, z: 0 + a + 0 * mse(z.detach().softmax(1)[:, 1], r)  # noqa: E731
    assert train(watched, step, Bert()) == []


def test_a_planned_beginning_is_taken_back(watched):
    count = 0

    def step(a, v, r, _):
        nonlocal count
        count += 1
        return a + mse(v.detach() if count <= 10 else v, r)

    events = train(watched, step, steps=20)
    assert events == [("MSELoss", "argument", HEAD), ("", "", [])]


def test_operands():
    a, b = torch.ones(1, requires_grad=True).sum(), torch.ones(())
    assert has_graphless_operand(a + b)
    assert has_graphless_operand((b - a) * 3)
    assert has_graphless_operand(torch.stack([a, b]).sum())
    assert has_graphless_operand(a.exp() + (a + 1))
    assert not has_graphless_operand(a + a.exp())
    assert not has_graphless_operand((a + b).exp())  # no sum any more
    wide = torch.ones(3, requires_grad=True)
    assert not has_graphless_operand((wide - 1).mean())  # an error
    assert not has_graphless_operand(torch.stack([a, a.exp()]).sum())
