"""Formulas of losses that scripts write themselves, read in the graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cases
import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._loss_formula import LossFormula, fault_of
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, CLASSES = 8, 3
CLASS = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0])
HOT = F.one_hot(CLASS, CLASSES)
SOFT = F.softmax(torch.linspace(-1, 1, ROWS * CLASSES).reshape(ROWS, CLASSES).sin(), 1)
YES = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0])
VALUE = torch.linspace(-1, 2, ROWS)
ROW = torch.arange(ROWS)
Formula = Callable[[Tensor], Tensor]


def graph(formula: Formula, outputs: int = CLASSES, inputs: int = 4) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))
    return fault_of(formula(model(torch.randn(ROWS, inputs))).grad_fn)


def of_one(formula: Formula) -> str:
    return graph(lambda z: formula(z.squeeze(1)), outputs=1)


def taken(p: Tensor) -> Tensor:
    return p.gather(1, CLASS[:, None])[:, 0]


def shares(z: Tensor, axis: int) -> Tensor:
    return z.exp() / z.exp().sum(axis, keepdim=True)


def binary(s: Tensor, y: Tensor = YES) -> Tensor:
    return y * torch.log(s + 1e-7) + (1 - y) * torch.log(1 - s + 1e-7)


def dice(s: Tensor) -> Tensor:
    return (2 * (s * YES).sum() + 1) / (s.sum() + YES.sum() + 1)


def iou(s: Tensor) -> Tensor:
    shared = (s * YES).sum()
    return shared / (s.sum() + YES.sum() - shared)


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: -torch.log(taken(F.softmax(z, 0)) + 1e-9).mean(),
        lambda z: -taken(F.softmax(z, 0).clamp(min=1e-9).log()).mean(),
        lambda z: -shares(z, 0)[ROW, CLASS].log().mean(),
        lambda z: -(HOT * F.log_softmax(z, 0)).sum(1).mean(),
        lambda z: F.cross_entropy(z, CLASS) - taken(F.log_softmax(z, 0)).sum(),
    ],
)
def test_a_softmax_over_the_batch_is_found(formula: Formula) -> None:
    assert graph(formula) == "softmax_axis"


def test_two_sigmoids_or_softmaxes_in_a_row_are_found() -> None:
    twice = "squashed_twice"
    assert of_one(lambda z: -torch.log(torch.sigmoid(torch.sigmoid(z - VALUE))).mean()) == twice
    assert of_one(lambda z: -F.logsigmoid(z.sigmoid()).mean()) == twice
    assert of_one(lambda z: -binary(z.sigmoid().sigmoid()).mean()) == twice
    assert graph(lambda z: -taken(F.log_softmax(F.softmax(z, 1), 1)).mean()) == twice
    assert graph(lambda z: -taken(F.softmax(F.softmax(z, 1), 1).log()).mean()) == twice
    assert graph(lambda z: -(HOT * F.log_softmax(z.sigmoid(), 1)).sum(1).mean()) == twice
    assert (
        graph(lambda z: F.kl_div(F.log_softmax(z.sigmoid(), 1), HOT.float(), reduction="batchmean")) == twice
    )


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: F.kl_div(F.log_softmax(z.sigmoid(), 1), SOFT, reduction="batchmean"),
        lambda z: F.kl_div(F.log_softmax(z.sigmoid(), 1), SOFT.log(), reduction="sum", log_target=True),
        lambda z: -(SOFT * F.log_softmax(z.sigmoid(), 1)).sum(1).mean(),
        lambda z: (SOFT * (SOFT.log() - F.log_softmax(F.softmax(z, 1), 1))).sum(),
        lambda z: -(SOFT * z.sigmoid().sigmoid().log()).mean(),
        lambda z: -(SOFT * F.softmax(z.sigmoid(), 1)).sum(1).mean(),  # gains of shares
        lambda z: -F.log_softmax(z.sigmoid(), 1).mean(),  # the target is even
        lambda z: -((HOT + HOT.roll(1, 1)) * F.log_softmax(z.sigmoid(), 1)).sum(),  # a mask
        lambda z: ((F.softmax(z.sigmoid(), 1) - SOFT) ** 2).mean(),
    ],
)
def test_two_in_a_row_that_meet_soft_targets_are_none(formula: Formula) -> None:
    assert graph(formula) != "squashed_twice"


def densities(z: Tensor) -> Tensor:
    """Logarithms of the densities (8, 3) of values under three normal distributions."""
    return torch.distributions.Normal(z, 0.5).log_prob(VALUE[:, None])


def test_weights_of_a_mixture_that_are_normalised_over_the_batch_are_found() -> None:
    assert graph(lambda z: -torch.logsumexp(F.log_softmax(z, 0) + densities(z), 1).mean()) == "softmax_axis"
    assert graph(lambda z: -(densities(z) + z.log_softmax(-2)).logsumexp(-1).sum()) == "softmax_axis"
    assert graph(lambda z: -torch.logsumexp(F.log_softmax(z, 1) + densities(z), -1).mean()) == ""
    assert graph(lambda z: -torch.logsumexp(F.log_softmax(z, -1) + densities(z), 1).mean()) == ""
    assert graph(lambda z: -torch.logsumexp(F.log_softmax(z, 0), 1).mean()) == ""  # no mixture
    # Categories (of 8 for each of 3 parts), whose weights are made otherwise.
    weights = F.softplus(VALUE[:CLASSES])
    assert (
        graph(
            lambda z: (
                -torch.logsumexp((F.softplus(z[0]) / 3).log() + F.log_softmax(z, 0), 1)[CLASS[:2]].mean()
            )
        )
        == ""
    )
    assert graph(lambda z: -torch.logsumexp(weights.log() + z[0] + F.log_softmax(z, 0), 1).mean()) == ""
    square = F.log_softmax(torch.randn(ROWS, ROWS), 1)
    assert graph(lambda z: -torch.logsumexp(F.log_softmax(z, 0) + square, 1).mean(), outputs=ROWS) == ""


def test_a_sigmoid_of_something_between_is_none_of_two_in_a_row() -> None:
    twice = "squashed_twice"
    assert (
        of_one(lambda z: -F.logsigmoid(z.sigmoid() - z.roll(1).sigmoid()).mean()) != twice
    )  # rewards of 0 to 1
    assert graph(lambda z: -taken(F.log_softmax(F.softmax(z, 1) / 0.1, 1)).mean()) != twice
    assert graph(lambda z: -taken(F.softmax(F.log_softmax(z, 1), 1).log()).mean()) != twice  # changes nothing
    assert graph(lambda z: -taken((z.sigmoid() * F.softmax(z, 1)).log()).mean()) != twice
    assert (
        graph(lambda z: F.mse_loss(z, VALUE[:, None].repeat(1, 3)) - F.logsigmoid(z.sigmoid()).mean())
        != twice
    )


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: F.log_softmax(z, 1)[ROW, CLASS].mean(),
        lambda z: (HOT * F.softmax(z, -1).log()).sum(),
        lambda z: ((1 - taken(F.softmax(z, 1))) ** 2 * taken(F.softmax(z, 1)).log()).mean(),
    ],
)
def test_a_missing_minus_is_found(formula: Formula) -> None:
    assert graph(formula) == "likelihood_minimised"


def test_faults_of_binary_formulas_are_found() -> None:
    assert of_one(lambda z: binary(z.sigmoid()).mean()) == "likelihood_minimised"
    assert of_one(lambda z: -(YES * z.sigmoid().log()).mean()) == "half_of_bce"
    assert of_one(lambda z: dice(z.sigmoid())) == "overlap_minimised"
    assert graph(lambda z: dice(z.sigmoid().squeeze(1)), outputs=1) == "overlap_minimised"
    assert of_one(lambda z: iou(z.sigmoid())) == "overlap_minimised"
    assert of_one(lambda z: 1 + iou(z.sigmoid())) == "overlap_minimised"


def of_hot(p: Tensor, hot: Tensor) -> Tensor:
    """Dice of each class, of (rows, classes)."""
    return ((2 * (p * hot).sum(0) + 1) / (p.sum(0) + hot.sum(0) + 1)).mean()


def test_an_overlap_that_is_added_to_a_loss_of_the_same_targets_is_found() -> None:
    fault, weight = "overlap_minimised", torch.tensor(3.0)
    bce = F.binary_cross_entropy_with_logits
    assert of_one(lambda z: bce(z, YES) + dice(z.sigmoid())) == fault
    assert of_one(lambda z: bce(z, YES, pos_weight=weight) + 0.5 * iou(z.sigmoid())) == fault
    assert of_one(lambda z: F.binary_cross_entropy(z.sigmoid(), YES) + dice(z.sigmoid())) == fault
    hot = HOT.float()
    assert graph(lambda z: F.cross_entropy(z, CLASS) + of_hot(z.softmax(1), hot)) == fault
    assert graph(lambda z: of_hot(z.softmax(1), hot)) == fault


def test_an_overlap_that_is_made_large_or_that_of_other_targets_is_none() -> None:
    bce = F.binary_cross_entropy_with_logits
    assert of_one(lambda z: bce(z, YES) + 1 - dice(z.sigmoid())) == ""
    assert of_one(lambda z: bce(z, YES) - dice(z.sigmoid()).log()) == ""
    assert of_one(lambda z: bce(z, 1 - YES) + dice(z.sigmoid())) == ""  # must not cover these
    assert of_one(lambda z: F.mse_loss(z, VALUE) + dice(z.sigmoid())) == ""
    assert graph(lambda z: F.cross_entropy(z, CLASS) - of_hot(z.softmax(1), HOT.float())) == ""
    assert graph(lambda z: F.cross_entropy(z, CLASS) + of_hot(z.softmax(1), HOT.float().roll(1, 1))) == ""


def test_an_overlap_of_scores_is_found() -> None:
    fault, bce = "overlap_of_scores", F.binary_cross_entropy_with_logits
    assert of_one(lambda z: 1 - dice(z)) == fault
    assert of_one(lambda z: 1 - iou(z)) == fault
    assert of_one(lambda z: bce(z, YES) + 1 - dice(z)) == fault
    assert graph(lambda z: 1 - dice(z.view(-1)), outputs=1) == fault
    assert graph(lambda z: 1 - of_hot(z, HOT.float())) == fault


def test_shares_bounded_numbers_and_means_by_weights_are_no_overlap_of_scores() -> None:
    fault = "overlap_of_scores"
    for squash in (torch.sigmoid, torch.relu, lambda z: z.clamp(0, 1), lambda z: z.tanh() / 2 + 0.5):
        assert of_one(lambda z, squash=squash: 1 - dice(squash(z))) != fault
    assert of_one(lambda z: 1 - (2 * (z * YES).sum() + 1) / (z.square().sum() + YES.sum() + 1)) != fault
    assert of_one(lambda z: (z * YES).sum() / YES.sum()) != fault  # the mean of those that a mask leaves
    assert of_one(lambda z: (z * YES).sum() / z.abs().sum()) != fault
    assert of_one(lambda z: (z * VALUE).sum() / (z.sum() + 1)) != fault  # weights of numbers
    assert of_one(lambda z: 1 - (z * YES).sum() / (z.norm() * YES.norm())) != fault


def test_an_overlap_of_other_scores_may_be_what_must_be_small() -> None:
    bce, x = F.binary_cross_entropy_with_logits, torch.randn(ROWS, 4)
    mask = YES[:, None]

    def of_two(loss: Callable[[Tensor, Tensor], Tensor], split: Callable[[Tensor], Any]) -> str:
        torch.manual_seed(0)
        front, back = split(nn.Linear(4, 2)(x))
        return fault_of(loss(front, back).grad_fn)

    def beside(front: Tensor, back: Tensor) -> Tensor:
        shares = back.reshape(-1).sigmoid()
        return bce(front.reshape(-1), YES) + dice(shares)

    for split in (
        lambda z: z.chunk(2, 1),
        lambda z: z.unbind(1),
        lambda z: (z[:, :1], z[:, 1:]),
        lambda z: (z[:, 0], z[:, 1]),
        lambda z: (z[:, 0], nn.Linear(4, 1)(x)),  # of another model
    ):
        assert of_two(beside, split) == ""
        assert of_two(lambda z, _: beside(z, z), split) == "overlap_minimised"
    both = nn.Linear(4, 2)(x).chunk(2, 1)
    assert (
        fault_of((F.binary_cross_entropy(both[0].sigmoid(), mask) + dice(both[1].sigmoid()[:, 0])).grad_fn)
        == ""
    )
    heads = nn.Linear(4, CLASSES)(x), nn.Linear(4, CLASSES)(x)
    hot = HOT.float()
    assert fault_of((F.cross_entropy(heads[0], CLASS) + of_hot(heads[1].softmax(1), hot)).grad_fn) == ""


TEACHER = torch.linspace(-1, 1, ROWS * CLASSES).reshape(ROWS, CLASSES).cos()


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: F.cosine_similarity(z, TEACHER).mean(),
        lambda z: F.cosine_similarity(z, TEACHER, dim=-1).mean() + 1,
        lambda z: (F.normalize(z, dim=1) * F.normalize(TEACHER, dim=1)).sum(1).mean(),
        lambda z: (
            F.cosine_similarity(z, TEACHER).mean() / 2 + F.cosine_similarity(z, TEACHER.flip(0)).mean() / 2
        ),
    ],
)
def test_a_similarity_that_is_made_small_is_found(formula: Formula) -> None:
    assert graph(formula) == "similarity_minimised"


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: 1 - F.cosine_similarity(z, TEACHER).mean(),
        lambda z: 2 - 2 * (F.normalize(z, dim=1) * F.normalize(TEACHER, dim=1)).sum(1).mean(),
        lambda z: F.cosine_similarity(z, z.flip(0)).mean(),  # rows are to be unlike
        lambda z: (F.normalize(z, dim=1) * TEACHER).sum(1).mean(),  # gains
        lambda z: F.cosine_similarity(z, TEACHER).mean() + F.cross_entropy(z, CLASS),  # a penalty
        lambda z: F.cosine_similarity(z, TEACHER.flip(0)).mean() - F.cosine_similarity(z, TEACHER).mean(),
        lambda z: (z * F.normalize(TEACHER, dim=1)).sum(1).mean(),
        lambda z: (F.normalize(z, dim=1) * -(2 * YES - 1)[:, None]).mean(),  # margins on a sphere
        lambda z: (F.normalize(z, dim=1) * HOT).sum(1).mean(),  # a class that is to be avoided
        lambda z: F.cosine_similarity(z, z.detach()).mean(),  # features that are to be left
        lambda z: F.cosine_similarity(z, z.detach() + 0.3 * TEACHER).mean(),
    ],
)
def test_similarities_that_are_made_large_and_penalties_are_none(formula: Formula) -> None:
    assert graph(formula) != "similarity_minimised"


def test_faults_of_errors_are_found() -> None:
    assert of_one(lambda z: (z - VALUE).mean()) == "mean_error"
    assert of_one(lambda z: (VALUE - z).sum() / ROWS) == "mean_error"
    assert of_one(lambda z: (z - VALUE).mean() ** 2) == "squared_mean"


def test_a_focal_factor_that_is_upside_down_is_found() -> None:
    assert (
        graph(lambda z: -(taken(F.softmax(z, 1)) ** 2 * taken(F.softmax(z, 1)).log()).mean())
        == "focal_upside_down"
    )


def of_codes(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Returns the fault of a variational model's loss, of its error, means and logarithms of variances."""
    torch.manual_seed(0)
    encoder, decoder, x = nn.Linear(6, 8), nn.Linear(4, 6), torch.randn(5, 6)
    mean, logarithm = encoder(x).chunk(2, 1)
    code = mean + (0.5 * logarithm).exp() * torch.randn(5, 4)
    return fault_of(formula(F.mse_loss(decoder(code), x), mean, logarithm).grad_fn)


def test_a_divergence_with_the_wrong_sign_is_found() -> None:
    for wrong in (
        lambda e, m, v: e + 0.5 * (1 + v - m.pow(2) - v.exp()).sum(1).mean(),
        lambda e, m, v: e + 0.1 * torch.mean(1 + v - m**2 - torch.exp(v)),
        lambda e, m, v: e - 0.5 * (v.exp() + m * m - 1 - v).sum() / 5,
        lambda e, m, v: e + 0.5 * (1 + torch.log((s := v.exp()) ** 2) - m**2 - s**2).sum(),
    ):
        assert of_codes(wrong) == "divergence_maximised"
    for right in (
        lambda e, m, v: e - 0.5 * (1 + v - m.pow(2) - v.exp()).sum(1).mean(),
        lambda e, m, v: e + 0.5 * (v.exp() + m * m - 1 - v).mean(),
        lambda e, m, v: -(0.5 * (1 + v - m.pow(2) - v.exp()).mean() - e),
        lambda e, m, v: e - 0.5 * (1 + torch.log((s := v.exp()) ** 2) - m**2 - s**2).sum(),
        lambda e, m, v: e + (0.5 * v + 0.5 * m**2 / v.exp()).mean(),  # a likelihood
        lambda e, m, v: e + 0.01 * m.pow(2).mean() - 0.01 * v.mean(),
    ):
        assert of_codes(right) == ""


def test_quantile_losses_that_fall_without_bound_are_found() -> None:
    error = lambda z: VALUE - z  # noqa: E731
    assert of_one(lambda z: torch.max(0.9 * error(z), 0.1 * error(z)).mean()) == "mean_error"
    assert of_one(lambda z: torch.where(error(z) > 0, 0.9 * error(z), 0.1 * error(z)).mean()) == "mean_error"
    assert of_one(lambda z: torch.min(0.9 * error(z), -0.1 * error(z)).mean()) == "errors_maximised"
    assert of_one(lambda z: -torch.max(0.9 * error(z), -0.1 * error(z)).mean()) == "errors_maximised"
    assert of_one(lambda z: ((VALUE.abs() + 1) * (z - VALUE)).mean()) == "mean_error"


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: torch.max(0.9 * (VALUE - z), -0.1 * (VALUE - z)).mean(),
        lambda z: torch.max((VALUE - z) * 0.1, (VALUE - z) * -0.9).mean(),
        lambda z: torch.where(z > VALUE, 0.1 * (z - VALUE), 0.9 * (VALUE - z)).mean(),
        lambda z: ((0.9 - (z > VALUE).float()) * (VALUE - z)).mean(),
        lambda z: -torch.where(z > 0, z, 0.1 * z).mean(),  # a gain
        lambda z: torch.max((z - VALUE) ** 2, (z - VALUE - 1) ** 2).mean(),
        lambda z: ((VALUE.abs() + 1) * (z - VALUE).abs()).mean(),
    ],
)
def test_weights_of_errors_that_are_meant_are_not_told(formula: Formula) -> None:
    assert of_one(formula) == ""


def test_margins_with_targets_of_zero_and_one_are_found() -> None:
    signs = 2 * YES - 1
    assert of_one(lambda z: F.relu(1 - YES * z).mean()) == "margin_of_zeros"
    assert of_one(lambda z: torch.clamp(1 - z * YES, min=0).mean()) == "margin_of_zeros"
    assert of_one(lambda z: torch.max(torch.zeros(ROWS), 1 - z * YES).mean()) == "margin_of_zeros"
    assert of_one(lambda z: F.softplus(-YES * z).mean()) == "margin_of_zeros"
    assert of_one(lambda z: F.relu(1 - signs * z).mean()) == ""
    assert of_one(lambda z: F.softplus(-signs * z).mean()) == ""
    assert of_one(lambda z: (F.softplus(z) - YES * z).mean()) == ""  # cross entropy of two classes
    assert of_one(lambda z: (F.relu(1 - YES * z) + F.relu(1 + (1 - YES) * z)).mean()) == ""


def of_values(target: Callable[[Callable[[Tensor], Tensor]], Tensor], loss: Any = F.mse_loss) -> str:
    """Returns the fault of a loss of one value an action, whose target is made with the same model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    predicted = model(torch.randn(ROWS, 4)).gather(1, CLASS[:, None])[:, 0]
    return fault_of(loss(predicted, target(model)).grad_fn)


def test_a_bootstrapped_target_with_a_gradient_is_found() -> None:
    later, reward, done = torch.randn(ROWS, 4), torch.randn(ROWS), (VALUE > 1).float()
    for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, nn.MSELoss()):
        assert of_values(lambda m: reward + 0.99 * m(later).max(1).values, loss) == "moving_target"
    for wrong in (
        lambda m: reward + (1 - done) * 0.9 * m(later).amax(1),
        lambda m: 0.9 * m(later).max(1)[0] * (1 - done) + reward,
        lambda m: reward + 0.9 * m(later).gather(1, CLASS[:, None]).squeeze(1),
    ):
        assert of_values(wrong) == "moving_target"
    for right in (
        lambda m: (reward + 0.99 * m(later).max(1).values).detach(),
        lambda m: m(later).max(1).values,  # two views are to agree
        lambda m: 0.99 * m(later).max(1).values,
        lambda m: reward + 2 * m(later).max(1).values,
        lambda m: reward - 1.5 * m(later)[:, 0].tanh(),  # a residual of an equation
        lambda m: reward + 0.9 * m(later)[:, 0].tanh(),
        lambda m: reward + 0.9 * copy.deepcopy(m)(later).amax(1),  # a target network, which nothing trains
        lambda m: VALUE,
    ):
        assert of_values(right) == ""


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: -torch.log(taken(F.softmax(z, 1)) + 1e-9).mean(),
        lambda z: -shares(z, 1)[ROW, CLASS].log().mean(),
        lambda z: -(HOT * F.log_softmax(z, -1)).sum(1).mean(),
        lambda z: -((1 - taken(F.softmax(z, 1))) ** 2 * taken(F.softmax(z, 1)).log()).mean(),
        lambda z: (F.softmax(z, 1) * F.log_softmax(z, 1)).sum(1).mean(),  # entropy that is to be large
        lambda z: (F.log_softmax(z, 1)[ROW, CLASS] * VALUE).mean(),  # policy: gains of either sign
        lambda z: (F.softmax(z, 1)[:, 0] * VALUE).mean(),  # expected cost
        lambda z: torch.log(1 - taken(F.softmax(z, 1))).mean(),  # unlikelihood
        lambda z: -F.log_softmax(z @ z.T, 0)[ROW, ROW].mean(),  # contrast: pairs on the diagonal
        lambda z: -F.log_softmax(z @ z.T, 0).gather(1, ROW[:, None]).mean(),
        lambda z: -F.log_softmax(z @ z.T, 0)[ROW, CLASS].mean(),  # pairs of a batch: either axis may be meant
        lambda z: -F.log_softmax(z.T, 0)[CLASS, ROW].mean(),  # classes along axis 0
        lambda z: -(torch.eye(3, CLASSES + 2) * F.log_softmax(z[:3] @ torch.randn(3, 5), 0)).sum(),  # matches
        lambda z: -F.log_softmax(z[:2], 0).gather(1, torch.tensor([[2], [1]])).mean(),  # each its own
        lambda z: -F.log_softmax(z, 1)[ROW, CLASS].mean() * -3.0,  # a gain below zero
        lambda z: F.log_softmax(z, 1)[ROW, CLASS].mean() * 3.0,  # a cost
        lambda z: (F.log_softmax(z, 1)[ROW, CLASS] - VALUE).mean(),  # divergence of what was drawn
        lambda z: F.cross_entropy(z, CLASS),
    ],
)
def test_formulas_of_classes_that_are_meant_are_not_told(formula: Formula) -> None:
    assert graph(formula) == ""


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: -binary(z.sigmoid()).mean(),
        lambda z: 1 - dice(z.sigmoid()),
        lambda z: -iou(z.sigmoid()),
        lambda z: (z.sigmoid() * YES).sum() / z.sigmoid().sum(),
        lambda z: 1 - dice(z.sigmoid()) - binary(z.sigmoid()).mean(),
        lambda z: ((z - VALUE) ** 2).mean(),
        lambda z: (z - VALUE).abs().mean(),
        lambda z: ((z - VALUE) ** 2).mean() + 0.1 * (z - 1).mean() ** 2,  # a penalty on the mean
        lambda z: torch.max(0.9 * (VALUE - z), 0.1 * (z - VALUE)).mean(),  # quantile
        lambda z: -z.mean(),  # a gain
        lambda z: z[:4].mean() - z[4:].mean(),  # a critic
        lambda z: torch.log(1 - z.sigmoid()).mean(),  # a generator
        lambda z: -(YES[:4] * (z[:4] - z[4:]).sigmoid().log()).mean(),  # ranks of pairs
        lambda z: ((z - VALUE).abs().mean() - 0.1).abs() + 0.1,  # flooding
    ],
)
def test_formulas_of_one_output_that_are_meant_are_not_told(formula: Formula) -> None:
    assert of_one(formula) == ""


def test_a_root_without_the_fault_takes_it_back_for_good() -> None:
    z = torch.randn(ROWS, CLASSES, requires_grad=True)
    found = LossFormula()
    for right in (False, False, True, False):
        gain = F.log_softmax(z, 1)[ROW, CLASS].mean()
        found.root(-gain if right else gain)
    assert [event["fault"] for event in found.waiting] == ["likelihood_minimised", ""]


def second_training(watched: Any, wrong: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    """Returns the faults that are told of a training with an optimizer of its own, behind one of the same model."""
    _, session = watched(DEFAULT_ROLES)
    model = nn.Linear(6, 3)
    for loss in (F.cross_entropy, wrong):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in cases.batches(5):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return [event["fault"] for event in session.json_events if event["kind"] == "loss_formula"]


def test_a_second_training_has_a_loss_of_its_own(watched) -> None:
    fault = "softmax_axis"
    assert second_training(watched, lambda z, y: -z.log_softmax(0)[torch.arange(len(y)), y].mean()) == [fault]


@pytest.mark.parametrize(
    "turned",
    [
        lambda z, y: z.log_softmax(1).gather(1, y[:, None]).mean(),
        lambda z, y: F.cosine_similarity(z, torch.linspace(-3, 2, z.numel()).sin().view_as(z)).mean(),
        lambda z, y: of_hot(z.softmax(1), F.one_hot(y, 3).float()),
        lambda z, y: (z - y[:, None]).mean(),
    ],
)
def test_a_second_training_may_turn_the_loss_round(
    watched, turned: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Rows are forgotten, or an attack is made."""
    x, y = next(iter(cases.batches(1)))
    assert fault_of(turned(nn.Linear(6, 3)(x), y).grad_fn)  # of a first one
    assert second_training(watched, turned) == []


@pytest.mark.parametrize("maximize", [False, True])
def test_the_hook_tells_a_fault_once_and_not_of_an_ascent(watched, maximize: bool) -> None:
    _, session = watched(DEFAULT_ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=maximize)
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        model(x).log_softmax(1)[torch.arange(len(y)), y].mean().backward()
        optimizer.step()
    told = [event["fault"] for event in session.json_events if event["kind"] == "loss_formula"]
    assert told == ([] if maximize else ["likelihood_minimised"])


def test_graphs_whose_tensors_a_hook_packs_are_left_alone(watched) -> None:
    _, session = watched(DEFAULT_ROLES)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            loss = model(x).log_softmax(1)[torch.arange(len(y)), y].mean()
        loss.backward()
        optimizer.step()
    assert not [event for event in session.json_events if event["kind"] == "loss_formula"]
