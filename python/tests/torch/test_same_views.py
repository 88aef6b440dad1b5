"""Two results of a model that a loss compares and that are equal in every bit."""

from __future__ import annotations

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = 12, 6


class Pair(nn.Module):
    """Returns what one tower makes of two inputs, as siamese networks do."""

    def __init__(self, tower):
        super().__init__()
        self.tower = tower

    def forward(self, one, other):
        return self.tower(one), self.tower(other)


def tower(dropout=0.0):
    layers = [nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH)]
    return nn.Sequential(*layers, nn.Dropout(dropout)) if dropout else nn.Sequential(*layers)


def trained(watched, loss_of, model=None, steps=12):
    """Trains, and returns what was told; `loss_of` gets the model, the batch and the step."""
    torch.manual_seed(0)
    _, session = watched(DEFAULT_ROLES | {Role.SAMPLE})
    model = model or tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, torch.randn(ROWS, 5), step).backward()
        optimizer.step()
    return [event["compared"] for event in session.json_events if event["kind"] == "same_view"]


def augmented(x):
    return x + 0.1 * torch.randn_like(x)


def likenesses(one, other):
    """NT-Xent, of views that are joined."""
    z = F.normalize(torch.cat([one, other]), dim=1)
    scores = (z @ z.T / 0.3).fill_diagonal_(-1e4)
    n = len(one)
    return F.cross_entropy(scores, torch.cat([torch.arange(n) + n, torch.arange(n)]))


def clip(one, other):
    scores = F.normalize(one, dim=1) @ F.normalize(other, dim=1).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(one)))


def barlow(one, other):
    one, other = ((z - z.mean(0)) / z.std(0) for z in (one, other))
    return ((one.T @ other / len(one) - torch.eye(WIDTH)) ** 2).sum()


def contrastive(one, other):
    distance = F.pairwise_distance(one, other)
    label = (torch.arange(len(one)) % 2).float()
    return (label * distance**2 + (1 - label) * F.relu(1 - distance) ** 2).mean()


def triplet(one, other):
    return F.triplet_margin_loss(one, other, one.flip(0))


LOSSES = [
    likenesses,
    clip,
    barlow,
    contrastive,
    triplet,
    lambda one, other: 1 - F.cosine_similarity(one, other).mean() + one.square().mean(),
    lambda one, other: F.mse_loss(one, other) + one.std(0).mean(),
    lambda one, other: (one - other).abs().mean() - one.var(),
    lambda one, other: -(one.tanh() * other.tanh()).sum(1).mean() + one.square().mean(),
    lambda one, other: F.cosine_embedding_loss(one, other, torch.ones(ROWS)) + one.mean(),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_one_view_in_two_calls_is_found(watched, loss):
    def of_calls(model, x, step):
        view = augmented(x)
        return loss(model(view), model(view))

    assert len(trained(watched, of_calls)) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_one_view_in_a_call_is_found(watched, loss):
    def of_a_call(model, x, step):
        view = augmented(x)
        return loss(*model(view, view))

    assert len(trained(watched, of_a_call, Pair(tower()))) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_two_views_and_models_that_draw_numbers_are_none(watched, loss):
    two = lambda model, x, step: loss(model(augmented(x)), model(augmented(x)))  # noqa: E731
    same = lambda model, x, step: loss(model(x), model(x))  # noqa: E731
    assert trained(watched, two) == []
    assert trained(watched, same, tower(0.1)) == []  # as SimCSE


TARGET = torch.arange(ROWS) % WIDTH


def head_start(model, x, step):
    """The strength of an augmentation rises from nothing."""
    return clip(model(x), model(x + 0.1 * max(step - 4, 0) * torch.randn_like(x)))


def two_losses(model, x, step):
    return F.cross_entropy(model(x), TARGET) + F.mse_loss(model(x), x[:, :1].expand(-1, WIDTH))


def conservative(model, x, step):
    """As of Q-learning: the values of actions that were taken, below those of all."""
    taken = model(x).gather(1, TARGET[:, None])[:, 0]
    return (model(x).logsumexp(1) - taken).mean() + taken.square().mean()


def trained_twice(model, x, step):
    return F.cross_entropy(torch.cat([model(x), model(x)]), torch.cat([TARGET, TARGET]))


def perturbed(model, x, step):
    worse = x.clone().requires_grad_()
    direction = torch.autograd.grad(F.cross_entropy(model(worse), TARGET), worse)[0]
    clean, other = model(x), model(x + 0.1 * direction.sign())
    return F.cross_entropy(clean, TARGET) + F.kl_div(
        other.log_softmax(1), clean.log_softmax(1), log_target=True, reduction="batchmean"
    )


def ratio(model, x, step):
    """The first pass over what was collected compares a policy with itself; later ones do not."""
    new = model(x).log_softmax(1).gather(1, TARGET[:, None])
    with torch.no_grad():
        old = model(x).log_softmax(1).gather(1, TARGET[:, None])
    return -((new - old).exp() * x[:, :1]).mean()


def collapsed(model, x, step):
    return clip(0 * model(x) + 1, 0 * model(x) + 1) + model(x).mean()


def squared(model, x, step):
    """An equation whose solution is learnt: u' = u - u * u, each u by a call of its own."""
    return ((model(x) - model(x) * model(x) - x[:, :1]) ** 2).mean()


@pytest.mark.parametrize(
    "loss_of", [head_start, two_losses, conservative, trained_twice, perturbed, ratio, collapsed, squared]
)
def test_equal_results_that_are_meant_are_none(watched, loss_of):
    assert trained(watched, loss_of) == []


def test_it_is_taken_back_when_views_differ(watched):
    def later(model, x, step):
        return clip(model(x), model(x if step < 10 else augmented(x)))

    assert trained(watched, later, steps=14) == ["Mm", ""]
