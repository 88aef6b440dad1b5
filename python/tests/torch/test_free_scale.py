"""Losses that a predicted scale alone can make 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from luff.torch.evidence._loss_formula import fault_of
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 8
VALUE = torch.linspace(-1, 2, ROWS)
OF_POINTS, OF_ALL = torch.zeros(ROWS, requires_grad=True), torch.zeros(1, requires_grad=True)
FAULT = "scale_without_cost"
Formula = Callable[[Tensor, Tensor], Tensor]


def graph(formula: Formula) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    mean, scale = model(torch.randn(ROWS, 4)).unbind(1)
    return fault_of(formula(mean, scale).grad_fn)


@pytest.mark.parametrize(
    "formula",
    [
        lambda m, s: ((VALUE - m) ** 2 / s.exp()).mean(),
        lambda m, s: (0.5 * (m - VALUE).pow(2) / (2 * s.exp())).sum(),
        lambda m, s: (torch.exp(-s) * (m - VALUE) ** 2).mean(),
        lambda m, s: (((m - VALUE) / F.softplus(s)) ** 2).mean(),
        lambda m, s: ((m - VALUE) ** 2 / (2 * F.softplus(s).square() + 1e-6)).mean(),
        lambda m, s: (F.mse_loss(m, VALUE, reduction="none") / (s.exp() + 1e-6)).mean(),
        lambda m, s: ((m - VALUE) ** 2 * torch.exp(-OF_ALL)).mean(),  # one noise for all
    ],
)
def test_a_scale_that_costs_nothing(formula: Formula) -> None:
    assert graph(formula) == FAULT


@pytest.mark.parametrize(
    "formula",
    [
        lambda m, s: (0.5 * s + 0.5 * (VALUE - m) ** 2 / s.exp()).mean(),
        lambda m, s: ((VALUE - m) ** 2 / s.exp()).mean() + 0.01 * s.square().mean(),
        lambda m, s: F.gaussian_nll_loss(m, VALUE, s.exp()),
        lambda m, s: -torch.distributions.Normal(m, s.exp()).log_prob(VALUE).mean(),
        lambda m, s: (F.softmax(s, 0) * (m - VALUE) ** 2).sum(),  # shares
        lambda m, s: (s.sigmoid() * (m - VALUE) ** 2).mean() - s.sigmoid().log().mean(),
        lambda m, s: ((VALUE - m) ** 2 / s.exp().detach()).mean(),
        lambda m, s: ((m - s) ** 2 / s.exp()).mean(),  # two answers
        lambda m, s: (m**2 * s.exp()).mean(),
        lambda m, s: ((VALUE - m) ** 2 / 2.0).mean(),
        lambda m, s: ((VALUE - m) ** 2 / (s.exp() / s.exp().sum())).mean(),
        lambda m, s: (-s.exp() * (m - VALUE) ** 2).mean(),
        # Self-adaptive weights of points, whose gradients the script turns round by hand.
        lambda m, s: (F.softplus(OF_POINTS) * (m - VALUE) ** 2).mean(),
        # What is predicted is the scale, too: counts over their rate (chi square), relative errors.
        lambda m, s: ((VALUE - s.exp()) ** 2 / s.exp()).mean(),
        lambda m, s: ((VALUE - (rate := F.softplus(s) + 1e-6)) ** 2 / rate).sum(),
        lambda m, s: (((s.exp() - VALUE) / s.exp()) ** 2).mean(),
        lambda m, s: (F.mse_loss(m * (size := s.exp()), VALUE, reduction="none") / size**2).mean(),
    ],
)
def test_scales_that_cost_something_and_other_products(formula: Formula) -> None:
    assert graph(formula) != FAULT
