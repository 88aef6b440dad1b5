"""Parts of losses that cannot be meant, read in the graph: samples of codes, objectives of PPO, sums that spread."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._formula_parts import faults_in, sign_of_mean
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F

ROWS, WIDTH = 16, 8
X = torch.linspace(-2, 2, ROWS * 4).reshape(ROWS, 4).sin()
ADVANTAGE = torch.linspace(-1, 1.5, ROWS).cos() * 2 - 0.7
ACTION = torch.arange(ROWS) % 3
Code = Callable[[Tensor, Tensor], Tensor]


def faults(loss: Tensor) -> list[str]:
    return faults_in((loss.grad_fn, loss.output_nr))


def divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    return -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1)


def autoencoder(draw: Code, cost: Code = divergence, parts: str = "chunk", weight: float = 1.0) -> list[str]:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(4, 2 * WIDTH), nn.Linear(WIDTH, 4)
    heads = nn.Linear(4, WIDTH), nn.Linear(4, WIDTH)
    mean, other = encoder(X).chunk(2, 1) if parts == "chunk" else (head(X) for head in heads)
    if parts == "softplus":
        other = F.softplus(other)
    error = F.mse_loss(decoder(draw(mean, other)), X, reduction="sum")
    return faults(error + weight * cost(mean, other).mean())


def noise(like: Tensor) -> Tensor:
    return torch.randn_like(like)


def in_place(mean: Tensor, log_var: Tensor) -> Tensor:
    deviation = log_var.mul(1.0).exp_()
    return noise(deviation).mul(deviation).add_(mean)


def of_log_deviation(mean: Tensor, log_deviation: Tensor) -> Tensor:
    return -0.5 * (1 + 2 * log_deviation - mean**2 - (2 * log_deviation).exp()).sum(1)


def of_variance(mean: Tensor, variance: Tensor) -> Tensor:
    return 0.5 * (variance + mean**2 - 1 - torch.log(variance)).sum(1)


def of_deviation(mean: Tensor, deviation: Tensor) -> Tensor:
    return 0.5 * (deviation**2 + mean * mean - 1 - torch.log(deviation**2)).sum(1)


def of_another(mean: Tensor, log_var: Tensor) -> Tensor:
    """The divergence from a distribution that is learnt, too."""
    other, wide = nn.Linear(4, WIDTH)(X), nn.Linear(4, WIDTH)(X)
    inside = (log_var.exp() + (mean - other) ** 2) / wide.exp()
    return 0.5 * (wide - log_var + inside - 1).sum(1)


@pytest.mark.parametrize("parts", ["chunk", "heads"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda m, v: m + noise(m) * v.exp(),
        lambda m, v: v.exp() * noise(m) + m,
        lambda m, v: m + noise(m) * v,
        lambda m, v: m + noise(m) * torch.exp(v * 2),
        lambda m, v: m + noise(m) * (0.5 * v).exp().sqrt(),
        lambda m, v: Normal(m, v.exp()).rsample(),
        in_place,
    ],
)
def test_a_deviation_that_is_the_variance_is_found(draw: Code, parts: str) -> None:
    assert autoencoder(draw, parts=parts) == ["deviation_unlike"]


@pytest.mark.parametrize(
    ("draw", "cost", "parts"),
    [
        (lambda m, v: m + torch.rand_like(m) * (0.5 * v).exp(), divergence, "chunk"),
        (lambda m, v: (v / 2).exp() * torch.rand(ROWS, WIDTH) + m, divergence, "heads"),
        (lambda m, v: m + (2 * torch.rand_like(m) - 1) * (0.5 * v).exp(), divergence, "chunk"),
        (lambda m, v: m + (torch.rand_like(m) - 0.5) * (0.5 * v).exp(), divergence, "chunk"),
        (lambda m, v: m + torch.rand_like(m) * v.exp(), divergence, "chunk"),  # two mistakes
        (lambda m, s: m + torch.rand_like(m) * s.exp(), of_log_deviation, "chunk"),
        (lambda m, s: m + torch.rand_like(m) * s, of_deviation, "softplus"),
        (lambda m, v: m + torch.empty_like(m).uniform_(-1, 1) * v.sqrt(), of_variance, "softplus"),
        (lambda m, v: m + torch.rand_like(m) * (0.5 * v).exp(), of_another, "heads"),
    ],
)
def test_uniform_noise_beside_the_divergence_of_a_normal_is_found(draw: Code, cost: Code, parts: str) -> None:
    assert autoencoder(draw, cost, parts) == ["uniform_noise"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda m, v: m + noise(m).clamp(-1, 1) * (0.5 * v).exp(),
        lambda m, v: m + (noise(m) > 0).float() * (0.5 * v).exp(),
        lambda m, v: m + F.dropout(torch.ones_like(m)) * (0.5 * v).exp(),
        lambda m, v: m + torch.rand_like(m).mul(3) * (0.5 * v).exp(),  # another interval
        lambda m, v: m + torch.rand_like(m),  # no deviation
        lambda m, v: m + (torch.rand_like(m) + 1e-9).log() * (0.5 * v).exp(),
        lambda m, v: m + torch.rand_like(m) * (0.5 * v).exp() * 0 + noise(m) * (0.5 * v).exp(),
        lambda m, v: m + torch.sigmoid(noise(m)) * (0.5 * v).exp(),
        lambda m, v: m + torch.rand(1, WIDTH) * (0.5 * v).exp(),  # too few numbers
    ],
)
def test_other_noise_is_not_taken_for_uniform(draw: Code) -> None:
    assert "uniform_noise" not in autoencoder(draw)


def test_a_deviation_that_does_not_fit_other_forms_of_the_divergence_is_found() -> None:
    half = lambda m, x: m + noise(m) * (0.5 * x).exp()  # noqa: E731
    unlike = ["deviation_unlike"]
    assert autoencoder(half, of_log_deviation) == unlike
    assert autoencoder(lambda m, v: m + noise(m) * v, of_variance, "softplus") == unlike
    assert autoencoder(lambda m, s: m + noise(m) * s.sqrt(), of_deviation, "softplus") == unlike
    assert autoencoder(lambda m, v: m + noise(m) * v.exp(), of_another) == unlike


@pytest.mark.parametrize(
    ("draw", "cost", "parts"),
    [
        (lambda m, v: m + noise(m) * (0.5 * v).exp(), divergence, "chunk"),
        (lambda m, v: m + noise(m) * torch.exp(v / 2), divergence, "heads"),
        (lambda m, v: m + 0.7 * noise(m) * v.exp().sqrt(), divergence, "chunk"),
        (lambda m, v: m + noise(m) * ((0.5 * v).exp() + 1e-6), divergence, "heads"),
        (lambda m, v: Normal(m, v.exp() ** 0.5).rsample(), divergence, "chunk"),
        (lambda m, s: m + noise(m) * s.exp(), of_log_deviation, "chunk"),
        (lambda m, v: m + noise(m) * v.sqrt(), of_variance, "softplus"),
        (lambda m, s: m + noise(m) * s, of_deviation, "softplus"),
        (lambda m, v: m + noise(m) * (0.5 * v).exp(), of_another, "heads"),
        (lambda m, v: m, divergence, "chunk"),  # no samples
        (lambda m, v: m + noise(m) * 0.1, divergence, "chunk"),
        (lambda m, v: m * noise(m).exp() + v.exp(), divergence, "heads"),
        (lambda m, v: m + noise(m) * v.clamp(-4, 4).exp(), divergence, "heads"),  # not followed
    ],
)
def test_deviations_that_fit_are_none(draw: Code, cost: Code, parts: str) -> None:
    assert autoencoder(draw, cost, parts) == []


def test_a_divergence_that_torch_computes_is_none() -> None:
    def cost(mean: Tensor, log_var: Tensor) -> Tensor:
        return kl_divergence(Normal(mean, log_var.exp()), Normal(0.0, 1.0)).sum(1)

    assert autoencoder(lambda m, v: Normal(m, v.exp()).rsample(), cost) == []


def test_a_bayesian_layer_and_errors_with_a_predicted_scale_are_none() -> None:
    mean, rho = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(8, 4))
    deviation = F.softplus(rho)
    made = F.linear(X, mean + deviation * torch.randn(8, 4)).square().mean()
    cost = (deviation**2 / 2 + mean**2 / 2 - torch.log(deviation)).sum()
    assert faults(made + cost) == []
    centre, log_var = nn.Linear(4, 2)(X).chunk(2, 1)
    drawn = centre + torch.randn(ROWS, 1) * log_var.exp()
    likelihood = (0.5 * (log_var + (X[:, :1] - centre) ** 2 / log_var.exp())).mean()
    assert faults(likelihood + drawn.square().mean()) == []


# PPO ---------------------------------------------------------------------------------------------------------------


def policy(loss: Callable[..., Tensor]) -> list[str]:
    torch.manual_seed(0)
    scores = nn.Linear(4, 3)(X)
    log_prob = Categorical(logits=scores).log_prob(ACTION)
    old = log_prob.detach() + 0.1 * torch.randn(ROWS)
    return faults(loss((log_prob - old).exp(), log_prob, old))


def clip(x: Tensor) -> Tensor:
    return x.clamp(0.8, 1.2)


A = ADVANTAGE


@pytest.mark.parametrize(
    ("fault", "loss"),
    [
        ("means_compared", lambda r, p, o: -torch.min((A * r).mean(), (A * clip(r)).mean())),
        ("means_compared", lambda r, p, o: -torch.min((r * A).sum(), (clip(r) * A).sum()) / ROWS),
        ("means_compared", lambda r, p, o: torch.max(-(r * A).mean(), -(clip(r) * A).mean())),
        ("means_compared", lambda r, p, o: -torch.stack([(r * A).mean(), (clip(r) * A).mean()]).min()),
        ("surrogate_upside_down", lambda r, p, o: -torch.max(r * A, clip(r) * A).mean()),
        ("surrogate_upside_down", lambda r, p, o: torch.min(-A * r, -A * clip(r)).mean()),
        ("surrogate_upside_down", lambda r, p, o: torch.min(r * A, clip(r) * A).mean()),
        ("surrogate_upside_down", lambda r, p, o: (-torch.maximum(r * A, clip(r) * A)).sum() + p.mean()),
        ("ratio_without_exp", lambda r, p, o: -torch.min((p - o) * A, clip(p - o) * A).mean()),
        ("ratio_without_exp", lambda r, p, o: -torch.min(p / o * A, clip(p / o) * A).mean()),
        ("gain_clipped", lambda r, p, o: -torch.min(r * A, r * clip(A)).mean()),
        ("gain_clipped", lambda r, p, o: -torch.min(r * A, clip(r * A)).mean()),
        ("clip_without_gain", lambda r, p, o: -torch.min(r * A, clip(r)).mean()),
        ("clip_around_zero", lambda r, p, o: -torch.min(r * A, r.clamp(-0.2, 0.2) * A).mean()),
    ],
)
def test_faults_of_a_clipped_objective_are_found(fault: str, loss: Callable[..., Tensor]) -> None:
    assert policy(loss) == [fault]
    mixed = policy(
        lambda r, p, o: loss(r, p, o) + 0.5 * (p - 1).square().mean() - 0.01 * (p.exp() * p).mean()
    )
    assert mixed == [fault]


COST = ADVANTAGE.roll(3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda r, p, o: -torch.min(r * A, clip(r) * A).mean(),
        lambda r, p, o: torch.max(-A * r, -A * clip(r)).mean(),
        lambda r, p, o: (-torch.min(r * A, clip(r) * A) * (A > 0)).sum() / (A > 0).sum(),
        lambda r, p, o: -torch.min(r[:1] * A[:1], clip(r[:1]) * A[:1]).mean(),  # a single sample
        lambda r, p, o: -torch.min((r[:1] * A[:1]).mean(), (clip(r[:1]) * A[:1]).mean()),
        lambda r, p, o: -torch.max(torch.min(r * A, clip(r) * A), 3 * A).mean(),  # clipped twice
        lambda r, p, o: torch.max(r * COST, clip(r) * COST).mean(),  # a cost
        lambda r, p, o: (
            -torch.min(r * A, clip(r) * A).mean() + 0.1 * torch.min(r * COST, clip(r) * COST).mean()
        ),
        lambda r, p, o: -(clip(r) * A).mean(),
        lambda r, p, o: -(r.clamp(max=1.0) * A).mean(),
        lambda r, p, o: -(p * A).mean(),
        lambda r, p, o: -torch.min(p.exp() / o.exp() * A, clip(p.exp() / o.exp()) * A).mean(),
        lambda r, p, o: -torch.min(r, A).mean(),
        lambda r, p, o: F.smooth_l1_loss(p, o),
        lambda r, p, o: torch.min(p.exp(), r).mean(),
        lambda r, p, o: -torch.min(r * A, r.clamp(1 - 0.2, 1 + 0.28) * A).mean(),
    ],
)
def test_objectives_that_are_meant_are_none(loss: Callable[..., Tensor]) -> None:
    assert policy(loss) == []


def test_the_smaller_error_of_clipped_values_is_found() -> None:
    value = nn.Linear(4, 1)(X)[:, 0]
    old, returns = value.detach() + 0.1 * torch.randn(ROWS), torch.randn(ROWS)
    near = old + (value - old).clamp(-0.2, 0.2)
    plain, clipped = (value - returns) ** 2, (near - returns).pow(2)
    assert faults(0.5 * torch.min(plain, clipped).mean()) == ["values_smaller"]
    assert faults(0.5 * torch.max(plain, clipped).mean()) == []
    each = [F.mse_loss(one, returns, reduction="none") for one in (value, near)]
    assert faults(torch.min(*each).mean()) == ["values_smaller"]
    assert faults(torch.max(*each).mean()) == []
    twins = [(nn.Linear(4, 1)(X)[:, 0] - returns) ** 2 for _ in range(2)]
    assert faults(torch.min(*twins).mean()) == []  # the better of two guesses


# Sums --------------------------------------------------------------------------------------------------------------


def flow(loss: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    z = nn.Linear(4, WIDTH)(X)
    change = (1 + torch.tanh(z @ torch.randn(WIDTH))).abs().add(1e-8).log()
    return faults(loss(z.square().sum(1), change))


@pytest.mark.parametrize(
    "loss",
    [
        lambda e, c: -torch.mean(-e + c.sum()),
        lambda e, c: (e - c.sum()).mean(),
        lambda e, c: (e - torch.sum(c)).sum() / ROWS,
        lambda e, c: (0.5 * e + 0.1 * (sum([c.sum(), (2 * c).sum()]))).mean(),
        lambda e, c: ((e - c.sum()).mean() + e.mean()) * 2,
        lambda e, c: -torch.mean(-e - (0 - sum(c))),
        lambda e, c: (e - sum(c[i] for i in range(ROWS))).mean(),
    ],
)
def test_a_sum_over_the_batch_that_each_sample_gets_is_found(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    assert flow(loss) == ["summed_and_spread"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda e, c: (e + c.sum() / len(c)).mean(),
        lambda e, c: (e - 0.1 * c.sum() / len(c)).sum(),
        lambda e, c: (e - (sum(c) / len(c))).mean(),
        lambda e, c: torch.mean(e + 0.5 * (c.sum() / c.numel())),
    ],
)
def test_a_mean_that_is_written_as_a_sum_is_no_fault(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert flow(loss) == []


WEIGHT = nn.Parameter(torch.randn(ROWS, 4))  # as many rows as samples


@pytest.mark.parametrize(
    "loss",
    [
        lambda e, c: (e - c).mean(),
        lambda e, c: e.mean() - c.sum(),
        lambda e, c: (e + 0.1 * WEIGHT.square().sum()).mean(),  # a penalty
        lambda e, c: (e + 0.1 * (c.sum() - 1) ** 2).mean(),
        lambda e, c: (e - c.exp().sum().log()).mean(),  # a share
        lambda e, c: (e / c.sum()).mean(),
        lambda e, c: (e + c.mean()).mean(),
        lambda e, c: (e - e.detach().sum()).mean(),
        lambda e, c: ((e - c.sum()) ** 2).mean(),
        lambda e, c: (e - c[0]).mean(),
        lambda e, c: (e - sum(c[:5])).mean(),
    ],
)
def test_other_sums_are_none(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert flow(loss) == []


# Categories --------------------------------------------------------------------------------------------------------


def gumbel(cost: Callable[[Tensor, Tensor], Tensor], hard: bool = False, own: bool = False) -> list[str]:
    scores = nn.Linear(4, WIDTH)(X)
    q = scores.softmax(-1)
    drawn = F.gumbel_softmax(scores, 0.7, hard=hard)
    if own:
        drawn = ((scores - torch.rand(ROWS, WIDTH).log().neg().log()) / 0.7).softmax(-1)
    return faults(F.mse_loss(nn.Linear(WIDTH, 4)(drawn), X) + cost(q, scores))


EVEN = torch.tensor(1 / WIDTH).log()


def test_a_divergence_of_categories_with_the_wrong_sign_is_found() -> None:
    for more in ({}, {"hard": True}, {"own": True}):
        grows = ["category_divergence_maximised"]
        assert gumbel(lambda q, s: -(q * (torch.log(q + 1e-9) - EVEN)).sum(-1).mean(), **more) == grows
        assert gumbel(lambda q, s: -(q * (s.log_softmax(-1) - EVEN)).sum(-1).mean(), **more) == grows
        assert gumbel(lambda q, s: (q * (torch.log(q + 1e-9) - EVEN)).sum(-1).mean(), **more) == []
        assert gumbel(lambda q, s: -(q * torch.log(q + 1e-9)).sum(-1).mean(), **more) == []  # an entropy


def test_the_hook_tells_of_a_part_once_although_it_comes_late_and_an_adversary_trains(watched) -> None:
    _, session = watched(DEFAULT_ROLES)
    encoder, decoder, critic = nn.Linear(4, 2 * WIDTH), nn.Linear(WIDTH, 4), nn.Linear(4, 1)
    first = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    second = torch.optim.SGD(critic.parameters(), lr=1e-3)
    for step in range(12):
        mean, log_var = encoder(X).chunk(2, 1)
        made = decoder(mean + noise(mean) * log_var.exp())
        first.zero_grad()
        (F.mse_loss(made, X) + min(step / 4, 1) * divergence(mean, log_var).mean()).backward()
        first.step()
        second.zero_grad()
        F.softplus(critic(made.detach())).mean().backward()
        second.step()
    told = [event["fault"] for event in session.json_events if event["kind"] == "formula_part"]
    assert told == ["deviation_unlike"]


def test_signed_errors_of_one_of_several_optimizers_are_found() -> None:
    value, actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Linear(4, 4)
    first = torch.optim.Adam(value.parameters())
    second = torch.optim.Adam(actor.parameters())
    both, returns = [second, first], torch.randn(ROWS)

    def found(loss: Tensor, optimizers: list[torch.optim.Optimizer] = both) -> bool:
        known = sign_of_mean(loss.grad_fn, optimizers)
        return known is not None and known[1]

    assert found((value(X).squeeze(-1) - returns).mean())
    assert found((returns - value(X)[:, 0]).sum())
    assert not found((value(X).squeeze(-1) - returns).mean(), [first])  # LossFormula's other look
    assert not found((value(X).squeeze(-1) - returns).square().mean())
    assert not found((value(X).squeeze(-1) - returns).abs().mean())
    assert not found(-value(X).mean())  # a critic of Wasserstein
    assert not found((value(X) - value(X.flip(0))).mean())
    assert not found(-(value(actor(X)).squeeze(-1) - returns).mean())  # an actor, above a baseline
    assert not found((value(X)[:, 0] - returns).mean() + value(X).square().mean())


def test_the_hook_tells_of_signed_errors_beside_a_policy(watched) -> None:
    _, session = watched(DEFAULT_ROLES)
    policy, value = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (policy, value)]
    for _ in range(6):
        returns = torch.randn(ROWS)
        estimates = value(X).squeeze(-1)
        log_prob = Categorical(logits=policy(X)).log_prob(ACTION)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (estimates - returns).mean().backward()
        (-(log_prob * (returns - estimates.detach())).mean()).backward()
        for optimizer in optimizers:
            optimizer.step()
    told = [event["fault"] for event in session.json_events if event["kind"] == "formula_part"]
    assert told == ["signed_error"]


def test_a_critic_with_a_margin_and_a_pass_for_each_sign_has_no_signed_errors(watched) -> None:
    _, session = watched(DEFAULT_ROLES)
    maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (maker, critic)]
    for _ in range(6):
        optimizers[1].zero_grad()
        (1 - critic(X)).mean().backward()
        (critic(maker(X).detach()) - 0.5).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(maker(X))).mean().backward()
        optimizers[0].step()
    assert [event["fault"] for event in session.json_events if event["kind"] == "formula_part"] == []
