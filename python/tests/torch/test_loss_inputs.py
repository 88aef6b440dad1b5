"""Which operation made what a loss gets, as the graph shows it: clamps, and cosines times a constant."""

from __future__ import annotations

import pytest
import torch
from luff.torch.evidence._loss_inputs import LossInputs
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = 8, 6


def told(tensor, kind="CrossEntropyLoss", readable=True):
    inputs = LossInputs()
    inputs.loss_called(kind, 0, tensor, readable)
    return [(event["made_by"], event.get("behind"), event.get("bound")) for event in inputs.waiting]


def scores():
    torch.manual_seed(0)
    return nn.Linear(4, 3)(torch.randn(ROWS, 4))


@pytest.mark.parametrize(
    "clamp",
    [
        lambda z: z.clamp(min=0),
        lambda z: z.clamp(0, 1),
        lambda z: torch.clamp(z, -1, 1),
        lambda z: z.clamp_max(0),
        lambda z: z.clamp(min=0).reshape(-1, 3),
    ],
)
def test_a_clamp_that_cuts_off_what_scores_need(clamp):
    assert told(clamp(scores())) == [("clamp", None, None)]


@pytest.mark.parametrize(
    "clamp",
    [
        lambda z: z.clamp(-30, 30),
        lambda z: z.clamp(min=-10),
        lambda z: z.clamp(max=5),
        lambda z: z.sigmoid().clamp(1e-6, 1 - 1e-6),  # keeps a logarithm finite
        lambda z: z.clamp(torch.zeros(3), torch.ones(3)),
        lambda z: z.clamp(0, 1) * 2,
        lambda z: (-z.square()).clamp(max=0),  # which it never is above
    ],
)
def test_a_clamp_that_only_keeps_numbers_finite(clamp):
    assert told(clamp(scores())) == []


def vectors(seed, rows=ROWS):
    torch.manual_seed(seed)
    return F.normalize(nn.Linear(4, WIDTH)(torch.randn(rows, 4)), dim=-1)


MASK = torch.eye(ROWS, dtype=torch.bool)


@pytest.mark.parametrize(
    ("likeness", "bound"),
    [
        (lambda a, b: a @ b.T * 0.1, 0.1),
        (lambda a, b: a @ b.T / 0.1, 10.0),
        (lambda a, b: torch.mm(a, b.t()), 1.0),
        (lambda a, b: (a @ b.T).masked_fill(MASK, -1e9) * 0.5, 0.5),
        (lambda a, b: torch.where(MASK, torch.tensor(-1e9), a @ b.T * 0.5), 0.5),
        (lambda a, b: a @ b.T * 0.2 - MASK.float() * 1e9, 0.2),
        (lambda a, b: torch.einsum("nd,md->nm", a, b) * 0.1, 0.1),
        (lambda a, b: F.cosine_similarity(a[:, None], b[None], dim=-1) * 0.1, 0.1),
        (lambda a, b: torch.cat([(a * b).sum(1, keepdim=True), a @ b.T], 1) * 0.1, 0.1),
        (lambda a, b: (a @ b.T)[:, :4] * -0.1, 0.1),
    ],
)
def test_cosines_times_a_constant(likeness, bound):
    assert told(likeness(vectors(1), vectors(2))) == [("", None, bound)]


@pytest.mark.parametrize(
    "likeness",
    [
        lambda a, b: 3 * a @ b.T,  # not of length 1
        lambda a, b: a @ b.T * nn.Parameter(torch.tensor(0.1)),  # a temperature that is learnt
        lambda a, b: (a @ b.T).exp() * 0.1,
        lambda a, b: a @ b.T * 0.1 + a[:, :1],
        lambda a, b: nn.Linear(WIDTH, 5)(a),
        lambda a, b: torch.cat([a @ b.T, a @ (2 * b).T], 1) * 0.1,
        lambda a, b: (a * b).mean(1, keepdim=True).expand(-1, 3),
    ],
)
def test_other_scores(likeness):
    assert told(likeness(vectors(1), vectors(2))) == []


def test_saved_tensors_are_left_alone_where_hooks_pack_them():
    assert told(vectors(1) @ vectors(2).T * 0.1, readable=False) == []
    assert told(vectors(1) @ vectors(2).T * 0.1, kind="BCEWithLogitsLoss") == []


def test_a_temperature_that_changes_is_told_again():
    inputs = LossInputs()
    for temperature in (0.1, 0.1, 0.2):
        inputs.loss_called("CrossEntropyLoss", 0, vectors(1) @ vectors(2).T * temperature)
    assert [event["bound"] for event in inputs.waiting] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("clamp", "clamped"),
    [
        (lambda z: z.clamp(-2, 2), [-2.0, 2.0]),
        (lambda z: z.clamp(min=0.5), None),  # one bound
        (lambda z: torch.clamp_max(z, 3), None),
        (lambda z: z.clamp(-2, 2) * 2, None),
        (lambda z: z.clamp(torch.zeros(3), torch.ones(3)), None),
        (lambda z: z, None),
    ],
)
def test_the_bounds_of_numbers_are_told(clamp, clamped):
    inputs = LossInputs()
    inputs.loss_called("MSELoss", 0, clamp(scores()))
    assert [event["clamped"] for event in inputs.waiting if "clamped" in event] == (
        [] if clamped is None else [clamped]
    )
