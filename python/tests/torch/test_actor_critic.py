"""Gains of a policy that are part of the graph, and products of log-probabilities that may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from luff.torch.evidence._loss_formula import fault_of
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

STEPS, ROWS = 5, 6
FOUND = "moving_gain"


class Rollout:
    """Log-probabilities of drawn actions, values and returns, as (STEPS, ROWS)."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.trunk, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
        logps, entropies, values = [], [], []
        for _ in range(STEPS):
            hidden = torch.tanh(self.trunk(torch.randn(ROWS, 4)))
            policy = Categorical(logits=self.actor(hidden))
            logps.append(policy.log_prob(policy.sample()))
            entropies.append(policy.entropy())
            values.append(self.critic(hidden).squeeze(-1))
        self.logp, self.entropy = torch.stack(logps), torch.stack(entropies).mean()
        self.each, self.values = values, torch.stack(values)
        self.returns = torch.randn(STEPS, ROWS)


def normalised(gain: Tensor) -> Tensor:
    return (gain - gain.mean()) / (gain.std() + 1e-8)


def generalised(r: Rollout) -> Tensor:
    """Advantages from the differences of neighbouring values, added up backwards."""
    found, gain = [], torch.zeros(ROWS)
    for t in reversed(range(STEPS - 1)):
        gain = r.returns[t] + 0.9 * r.each[t + 1] - r.each[t] + 0.8 * gain
        found.append(gain)
    return torch.stack([*found[::-1], gain])


def ratio(r: Rollout, gain: Tensor) -> Tensor:
    change = (r.logp - r.logp.detach()).exp()
    return torch.min(change * gain, change.clamp(0.8, 1.2) * gain)


Loss = Callable[[Rollout], Tensor]


@pytest.mark.parametrize(
    "loss",
    [
        lambda r: -(r.logp * (r.returns - r.values)).mean() + (r.returns - r.values).pow(2).mean(),
        lambda r: -(r.logp * normalised(r.returns - r.values)).mean() + 0.5 * F.mse_loss(r.values, r.returns),
        lambda r: (
            -(r.logp * generalised(r)).mean() + 0.5 * F.smooth_l1_loss(r.values, r.returns) - 0.01 * r.entropy
        ),
        lambda r: -ratio(r, r.returns - r.values).mean() + (r.values - r.returns).square().mean(),
        lambda r: (
            sum(-r.logp[t] * (r.returns[t] - r.each[t]) for t in range(STEPS)).mean()
            + F.mse_loss(torch.stack(r.each), r.returns)
        ),
    ],
)
def test_an_advantage_that_moves_its_critic_is_found(loss: Loss) -> None:
    assert fault_of(loss(Rollout()).grad_fn) == FOUND


ACTION = torch.arange(ROWS) % 3


def weighted(loss: Callable[[Tensor, Tensor], Tensor], chosen: bool = False) -> str:
    """Returns the fault of a loss of classes, of what each of them costs and of a weight that is learnt."""
    torch.manual_seed(0)
    x, model, weigh = torch.randn(ROWS, 4), nn.Linear(4, 3), nn.Linear(4, 1)
    cost = F.cross_entropy(model(x), ACTION, reduction="none")
    if chosen:
        cost = -model(x).log_softmax(1).gather(1, ACTION[:, None]).squeeze(1)
    return fault_of(loss(cost, weigh(x).squeeze(1)).grad_fn)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        lambda cost, w: (cost * w).mean() + 0.1 * ((w - 1) ** 2).mean(),
        lambda cost, w: (cost * w.sigmoid()).mean() + (1 - w.sigmoid()).square().mean(),
        lambda cost, w: (cost * (q := F.softplus(w))).mean() + F.mse_loss(q, torch.ones(ROWS)),
        lambda cost, w: (cost * (q := w.sigmoid())).mean() + F.smooth_l1_loss(q, torch.linspace(0, 1, ROWS)),
        lambda cost, w: (cost * (1 - w)).mean() + F.mse_loss(w, torch.linspace(0, 1, ROWS)),
        lambda cost, w: (cost * (w + 1e-3)).mean() + F.mse_loss(w, torch.linspace(0, 1, ROWS)),
    ],
)
def test_weights_of_samples_that_are_learnt_are_silent(
    loss: Callable[[Tensor, Tensor], Tensor], chosen: bool
) -> None:
    assert weighted(loss, chosen) == ""


@pytest.mark.parametrize(
    "loss",
    [
        lambda r: -(r.logp * (r.returns - r.values).detach()).mean() + (r.returns - r.values).pow(2).mean(),
        lambda r: -(r.logp * normalised(generalised(r)).detach()).mean() + F.mse_loss(r.values, r.returns),
        lambda r: -ratio(r, (r.returns - r.values).detach()).mean() + F.mse_loss(r.values, r.returns),
        # No values that are fitted: a learnt weight of samples, or of experts.
        lambda r: -(r.logp * r.values.sigmoid()).mean(),
        lambda r: -(r.logp * r.values.softmax(0)).sum() + 0.1 * r.values.sigmoid().mean(),
        # Entropies are products of probabilities and their logarithms.
        lambda r: F.mse_loss(r.values, r.returns) + 0.1 * (r.logp * r.logp.exp()).mean(),
        lambda r: F.mse_loss(r.values, r.returns) - 0.01 * r.entropy,
        # An energy, whose factors both come from what is fitted.
        lambda r: F.mse_loss(r.values, r.returns) + (r.values * r.values.tanh()).mean(),
        # A bootstrapped critic beside a policy with gains of its own.
        lambda r: -(r.logp * r.returns).mean() + F.mse_loss(r.values, r.returns),
    ],
)
def test_gains_that_do_not_and_other_products_are_silent(loss: Loss) -> None:
    assert fault_of(loss(Rollout()).grad_fn) != FOUND
